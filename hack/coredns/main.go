// Package main is CoreDNS with only the plugins that a cluster on one machine uses: a fraction of the stock build's time and size.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The order in which plugins handle a query, as in CoreDNS's own plugin.cfg.
func init() {
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "cache", "kubernetes", "forward"}
}

func main() {
	coremain.Run()
}
