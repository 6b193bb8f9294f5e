// Coredns answers the local cluster's names. It links only the plugins that the Corefile of the end-to-end cluster
// names: nothing is forwarded, because nothing may leave the machine.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which a query passes through the plugins.
	dnsserver.Directives = []string{"health", "ready", "errors", "kubernetes", "template"}
	coremain.Run()
}
