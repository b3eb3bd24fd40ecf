{{/* Names are fixed, not made from the release: there is one Halo a cluster, and pods, policies and docs name them. */}}
{{- define "halo.name" -}}halo-operator{{- end }}

{{- define "halo.username" -}}system:serviceaccount:{{ .Release.Namespace }}:{{ include "halo.name" . }}{{- end }}

{{/* The end of the name of every pod of a run: the attempt, and ten hex digits of a hash. */}}
{{- define "halo.runPodName" -}}-a[0-9]+-[0-9a-f]{10}${{- end }}

{{- define "halo.selector" -}}
app.kubernetes.io/name: halo
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Not on pod templates: the versions change with every release of the chart, and a pod must not restart for that. */}}
{{- define "halo.labels" -}}
{{ include "halo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: halo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* image: a reference by digest, or else by tag; takes (list image appVersion). */}}
{{- define "halo.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end }}
