package cluster

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// member is a process that can be started again with the same data and addresses.
type member struct {
	program string
	args    []string
	log     string
	running *exec.Cmd
}

func (m *member) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.running = exec.Command(m.program, m.args...)
	m.running.Env = withoutSettings()
	m.running.Stdout, m.running.Stderr = log, log
	// A test program that is killed takes its members with it.
	m.running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.running.Start(); err != nil {
		t.Fatal(err)
	}
}

// stop returns once the process has ended.
func (m *member) stop(signal syscall.Signal) {
	if !m.runs() {
		return
	}
	// The signal finds it or it has ended already; how it ended is of no interest.
	_ = m.running.Process.Signal(signal)
	_ = m.running.Wait()
	m.running = nil
}

func (m *member) runs() bool { return m.running != nil }

// startAll starts members that end with the test, and has the end of their logs in the output of one that fails.
func startAll(t testing.TB, all []*member) {
	t.Helper()
	t.Cleanup(func() {
		for _, m := range all {
			m.stop(syscall.SIGKILL)
			if t.Failed() {
				t.Logf("%s:\n%s", m.log, lastLines(m.log, 15))
			}
		}
	})
	for _, m := range all {
		m.start(t)
	}
}

func lastLines(path string, count int) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-count):], []byte("\n"))
}

// withoutSettings is the environment without what would configure a member.
func withoutSettings() []string {
	var kept []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ETCD_") && !strings.HasPrefix(variable, "DENGINE_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

func (c *Cluster) add(program, log string, arguments []string) {
	c.members = append(c.members, &member{program: program, log: log, args: arguments})
}

func startEtcd(t testing.TB, program string, options Options) *Cluster {
	t.Helper()
	folder := t.TempDir()
	var clients, peers, initial []string
	for number := range options.members() {
		clients = append(clients, "http://"+freeAddress(t))
		peers = append(peers, "http://"+freeAddress(t))
		initial = append(initial, fmt.Sprintf("e%d=%s", number, peers[number]))
	}
	started := &Cluster{Fresh: true}
	for number := range options.members() {
		name := fmt.Sprintf("e%d", number)
		started.endpoints = append(started.endpoints, strings.TrimPrefix(clients[number], "http://"))
		arguments := []string{
			"--name", name, "--log-level", "warn", "--data-dir", filepath.Join(folder, name),
			"--listen-client-urls", clients[number], "--advertise-client-urls", clients[number],
			"--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number],
			"--initial-cluster", strings.Join(initial, ","),
			"--watch-progress-notify-interval", options.progress().String(),
			// Nothing here outlives a loss of power, and syncing is most of the time.
			"--unsafe-no-fsync",
		}
		started.add(program, filepath.Join(folder, name+".log"), append(arguments, options.Etcd...))
	}
	startAll(t, started.members)
	return started
}

func startDEngine(t testing.TB, program string, options Options) *Cluster {
	t.Helper()
	folder := t.TempDir()
	started := &Cluster{Fresh: true}
	var own []string
	for number := range options.members() {
		name := fmt.Sprintf("m%d", number)
		etcd, client := freeAddress(t), freeAddress(t)
		started.endpoints = append(started.endpoints, etcd)
		own = append(own, client)
		arguments := []string{
			"serve", "--name", name, "--log-level", "warn", "--data-dir", filepath.Join(folder, name),
			"--listen-etcd", etcd, "--listen-client", client, "--listen-peer", freeAddress(t),
			"--listen-monitor", freeAddress(t), "--listen-admin", freeAddress(t),
			// As in etcd, history is what clients leave of it.
			"--retention-revisions", "0", "--retention-seconds", "0",
			"--watch-progress-interval-ms", fmt.Sprint(options.progress().Milliseconds()),
		}
		started.add(program, filepath.Join(folder, name+".log"), append(arguments, options.DEngine...))
	}
	startAll(t, started.members)
	initialize := exec.Command(program, "init", "--endpoints", strings.Join(own, ","))
	initialize.Env = withoutSettings()
	if said, err := initialize.CombinedOutput(); err != nil {
		t.Fatalf("no cluster was formed: %v\n%s", err, said)
	}
	return started
}

// Below the range from which the system picks ports for outgoing connections, so that a member that is down for a
// while finds its port free when it comes back.
const (
	firstPort = 10_000
	ports     = 20_000
)

var taken atomic.Uint32

// freeAddress is one of loopback that nobody listens on, and that this program gives nobody else.
func freeAddress(t testing.TB) string {
	t.Helper()
	// Test programs that run at the same time begin far from each other.
	begin := uint32(os.Getpid()) * 101
	for range ports {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+(begin+taken.Add(1))%ports)
		if listener, err := net.Listen("tcp", address); err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}
