-- Argo CD health of TrainingJobs, GrpoRuns, Datasets, Adapters and Workspaces, from their conditions. A run is Healthy when its adapter is
-- published, as a batch Job is when it is done; the others when they are Ready. A status about an older generation says nothing.
local health = {status = "Progressing", message = "waiting for the operator"}
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end

local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
local function holds(type)
  return found[type] ~= nil and found[type].status == "True"
end

local done = "Complete"
if obj.kind == "Dataset" or obj.kind == "Adapter" or obj.kind == "Workspace" then done = "Ready" end

if holds("Failed") then return {status = "Degraded", message = found.Failed.message} end
if holds("Stalled") then return {status = "Degraded", message = found.Stalled.message} end
if holds(done) then return {status = "Healthy", message = found[done].message} end
if holds("Suspended") then return {status = "Suspended", message = found.Suspended.message} end
if found.Ready ~= nil then health.message = found.Ready.message end
return health
