// Package cluster gives tests an etcd-compatible cluster: members started here, on loopback, of DEngine
// (ETCD_SUITES_DENGINE=PROGRAM) or of etcd (ETCD_SUITES_ETCD=PROGRAM), or one that somebody else serves
// (ETCD_SUITES_ENDPOINTS=ADDRESS,…).
package cluster

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	// Patience is how long anything may take that a healthy cluster does at once: a machine may be slow.
	Patience  = 2 * time.Minute
	lookEvery = 20 * time.Millisecond
)

// Cluster is what a test talks to.
type Cluster struct {
	// Fresh says whether this test alone uses it, from the first revision on.
	Fresh     bool
	endpoints []string
	members   []*member
	// killCommand kills and restarts the leader of members that somebody else started.
	killCommand string
}

// Options are how members are started here.
type Options struct {
	// Progress is the time between two messages of progress on a watch that wants them; 0: ten minutes, as in etcd.
	Progress time.Duration
	// Members is how many there are; 0: three.
	Members int
	// DEngine and Etcd are further arguments for the one program or the other.
	DEngine, Etcd []string
}

func (o Options) progress() time.Duration {
	if o.Progress == 0 {
		return 10 * time.Minute
	}
	return o.Progress
}

func (o Options) members() int {
	if o.Members == 0 {
		return 3
	}
	return o.Members
}

// Start gives a cluster that serves. What it starts ends with the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with options, which a cluster that somebody else serves does not know.
func StartWith(t testing.TB, options Options) *Cluster {
	t.Helper()
	var started *Cluster
	switch {
	case os.Getenv("ETCD_SUITES_DENGINE") != "":
		started = startDEngine(t, os.Getenv("ETCD_SUITES_DENGINE"), options)
	case os.Getenv("ETCD_SUITES_ETCD") != "":
		started = startEtcd(t, os.Getenv("ETCD_SUITES_ETCD"), options)
	case os.Getenv("ETCD_SUITES_ENDPOINTS") != "":
		endpoints := strings.Split(os.Getenv("ETCD_SUITES_ENDPOINTS"), ",")
		started = &Cluster{endpoints: endpoints, killCommand: os.Getenv("ETCD_SUITES_KILL")}
	default:
		t.Fatal("no cluster: set ETCD_SUITES_DENGINE or ETCD_SUITES_ETCD to a program, or ETCD_SUITES_ENDPOINTS")
	}
	for _, endpoint := range started.endpoints {
		awaitServing(t, endpoint)
	}
	return started
}

// Endpoints are the addresses of all members.
func (c *Cluster) Endpoints() []string { return c.endpoints }

// Config is a client's of all members.
func (c *Cluster) Config() clientv3.Config { return config(c.endpoints...) }

func config(endpoints ...string) clientv3.Config {
	// A killed member is no news: clients log each attempt to reach it.
	return clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}
}

// Client is one of all members, which the test closes as it ends.
func (c *Cluster) Client(t testing.TB) *clientv3.Client { return connect(t, c.Config()) }

// ClientOf is one of a single member.
func (c *Cluster) ClientOf(t testing.TB, number int) *clientv3.Client {
	return connect(t, config(c.endpoints[number]))
}

func connect(t testing.TB, config clientv3.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatalf("no client of %v: %v", config.Endpoints, err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// CanKill says whether KillLeader has a way to do so.
func (c *Cluster) CanKill() bool { return len(c.members) > 0 || c.killCommand != "" }

// KillLeader sends a signal to the leader, waits until another member leads, and starts the first one again.
func (c *Cluster) KillLeader(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if c.killCommand != "" {
		if said, err := exec.Command("sh", "-c", c.killCommand).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c.killCommand, err, said)
		}
		return
	}
	killed := c.AwaitLeader(t)
	c.Stop(killed, signal)
	c.AwaitLeader(t)
	c.Restart(t, killed)
}

// Stop sends a signal to a member that was started here, and returns once its process has ended.
func (c *Cluster) Stop(number int, signal syscall.Signal) { c.members[number].stop(signal) }

// Restart starts a member that was stopped, and returns once it serves.
func (c *Cluster) Restart(t testing.TB, number int) {
	t.Helper()
	c.members[number].start(t)
	awaitServing(t, c.endpoints[number])
}

// Close ends the members that were started here before the test does.
func (c *Cluster) Close() {
	for _, m := range c.members {
		m.stop(syscall.SIGKILL)
	}
}

// AwaitLeader is the number of the member that leads, once one does of those started here that run.
func (c *Cluster) AwaitLeader(t testing.TB) int {
	t.Helper()
	leader := -1
	await(t, "a member to lead", func() bool {
		for number, endpoint := range c.endpoints {
			if c.members[number].runs() && leads(endpoint) {
				leader = number
				return true
			}
		}
		return false
	})
	return leader
}

func leads(endpoint string) bool {
	found := false
	ask(endpoint, func(ctx context.Context, client *clientv3.Client) error {
		status, err := client.Status(ctx, endpoint)
		found = err == nil && status.Leader == status.Header.MemberId
		return err
	})
	return found
}

func awaitServing(t testing.TB, endpoint string) {
	t.Helper()
	await(t, endpoint+" to serve", func() bool {
		return ask(endpoint, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Get(ctx, "any")
			return err
		}) == nil
	})
}

// ask calls one member, briefly.
func ask(endpoint string, call func(context.Context, *clientv3.Client) error) error {
	client, err := clientv3.New(config(endpoint))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return call(ctx, client)
}

func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(lookEvery) {
		if time.Since(begun) > Patience {
			t.Fatalf("waited %v for %s", Patience, what)
		}
	}
}
