// Package common runs etcd's own tests/common, unmodified, on clusters of DEngine or of etcd: `make etcd-common`. Here
// are the runner that those tests ask for clusters, and which of them are not for DEngine; go.sh adds the tests.
package common

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"

	"dengine.io/verification/etcd-suites/cluster"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/config"
	intf "go.etcd.io/etcd/tests/v3/framework/interfaces"
)

func init() {
	testRunner = runner{}
	clusterTestCases = func() []testCase {
		return []testCase{
			{name: "One", config: config.ClusterConfig{ClusterSize: 1}},
			{name: "Three", config: config.ClusterConfig{ClusterSize: 3}},
		}
	}
}

// WithEndpoints makes a client one of these members only.
func WithEndpoints(endpoints []string) config.ClientOption {
	return func(client any) { client.(*clientv3.Config).Endpoints = endpoints }
}

type runner struct{}

func (runner) TestMain(m *testing.M) {
	failed := m.Run()
	if failed == 0 && !skipsAreCurrent() {
		failed = 1
	}
	os.Exit(failed)
}

func (runner) BeforeTest(t testing.TB) { skipIfRefused(t) }

func (runner) NewCluster(ctx context.Context, t testing.TB, opts ...config.ClusterOption) intf.Cluster {
	skipIfRefused(t)
	asked := config.NewClusterConfig(opts...)
	if asked.ClientTLS != config.NoTLS {
		t.Fatal("there is no cluster here that serves clients over TLS")
	}
	// How members reach each other is no part of the API: where a test asks for TLS between them, they go without.
	served := cluster.StartWith(t, cluster.Options{
		Members: asked.ClusterSize,
		DEngine: []string{"--etcd-membership", "change"},
		Etcd:    etcdArguments(asked),
	})
	if ctx.Err() != nil {
		t.Fatal("the machine is too busy: the test's time was over before its cluster served")
	}
	if !served.Fresh {
		t.Fatal("these tests stop members and count revisions from the first on: name a program")
	}
	return &testCluster{t: t, served: served}
}

func etcdArguments(asked config.ClusterConfig) []string {
	arguments := []string{fmt.Sprintf("--strict-reconfig-check=%t", asked.StrictReconfigCheck)}
	if asked.QuotaBackendBytes != 0 {
		arguments = append(arguments, fmt.Sprintf("--quota-backend-bytes=%d", asked.QuotaBackendBytes))
	}
	if asked.SnapshotCount != 0 {
		arguments = append(arguments, fmt.Sprintf("--snapshot-count=%d", asked.SnapshotCount))
	}
	return arguments
}

type testCluster struct {
	t      testing.TB
	served *cluster.Cluster
}

func (c *testCluster) Members() []intf.Member {
	var members []intf.Member
	for number := range c.served.Endpoints() {
		members = append(members, member{c, number})
	}
	return members
}

func (c *testCluster) Client(opts ...config.ClientOption) (intf.Client, error) {
	asked := c.served.Config()
	for _, option := range opts {
		option(&asked)
	}
	connected, err := clientv3.New(asked)
	if err != nil {
		return nil, err
	}
	c.t.Cleanup(func() { connected.Close() })
	return client{connected}, nil
}

func (c *testCluster) WaitLeader(t testing.TB) int { return c.served.AwaitLeader(t) }

func (c *testCluster) Endpoints() []string { return c.served.Endpoints() }

func (c *testCluster) Close() error {
	c.served.Close()
	return nil
}

type member struct {
	of     *testCluster
	number int
}

func (m member) Client() intf.Client { return client{m.of.served.ClientOf(m.of.t, m.number)} }

func (m member) Start(context.Context) error {
	m.of.served.Restart(m.of.t, m.number)
	return nil
}

func (m member) Stop() { m.of.served.Stop(m.number, syscall.SIGTERM) }
