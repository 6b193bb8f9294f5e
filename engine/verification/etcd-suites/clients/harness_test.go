// Package clients holds what clientv3 and its concurrency package promise, against a cluster whose leaders are killed.
package clients

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"dengine.io/verification/etcd-suites/cluster"
)

const (
	// Longer than any time without a leader, so that nobody loses a session by a kill alone.
	sessionSeconds = 60
	lookEvery      = 20 * time.Millisecond
)

// A workload goes on until its context ends, calls `progress` whenever a call succeeded, and then judges what it has
// seen. It returns what was broken; that a member could not be reached is no such thing.
type workload struct {
	name string
	run  func(ctx context.Context, t *testing.T, e environment) error
	// step is how much progress it makes between two kills.
	step int64
}

// environment is what a workload works with.
type environment struct {
	cluster  *cluster.Cluster
	prefix   string
	progress func()
}

func (e environment) client(t *testing.T) *clientv3.Client { return e.cluster.Client(t) }

func (e environment) key(name string) string { return e.prefix + name }

// kills is how many leaders end in each test.
func kills(t *testing.T) int {
	text := os.Getenv("ETCD_SUITES_KILLS")
	if text == "" {
		return 4
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("ETCD_SUITES_KILLS=%s is no number", text)
	}
	return count
}

// whileLeadersDie runs all workloads on one cluster. Each leader is killed once every workload has got further since
// the last one: with SIGKILL and with SIGTERM in turn.
func whileLeadersDie(t *testing.T, workloads ...workload) {
	served := cluster.Start(t)
	if !served.CanKill() {
		t.Skip("nobody may kill a leader here: ETCD_SUITES_KILL=COMMAND would")
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var running sync.WaitGroup
	broken := make(chan error, len(workloads))
	counts := make([]atomic.Int64, len(workloads))
	for number, w := range workloads {
		e := environment{
			cluster:  served,
			prefix:   fmt.Sprintf("suite/%s-%d/", w.name, time.Now().UnixNano()),
			progress: func() { counts[number].Add(1) },
		}
		running.Go(func() {
			if err := w.run(ctx, t, e); err != nil {
				broken <- fmt.Errorf("%s: %w", w.name, err)
			}
		})
	}
	count := kills(t)
	for kill := range count + 1 {
		if !furtherByAStep(t, workloads, counts, broken) || kill == count {
			break
		}
		served.KillLeader(t, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[kill%2])
	}
	end()
	running.Wait()
	close(broken)
	for err := range broken {
		t.Error(err)
	}
}

// furtherByAStep waits until each workload has got further. It returns false, with the test failed, if one was broken.
func furtherByAStep(t *testing.T, workloads []workload, counts []atomic.Int64, broken <-chan error) bool {
	for number, w := range workloads {
		begun, before := time.Now(), counts[number].Load()
		for counts[number].Load() < before+w.step {
			select {
			case err := <-broken:
				t.Error(err)
				return false
			case <-time.After(lookEvery):
			}
			if time.Since(begun) > cluster.Patience {
				t.Errorf("%s got no further than %d in %v", w.name, counts[number].Load()-before, cluster.Patience)
				return false
			}
		}
	}
	return true
}

// afterwards is for what is looked at once the workload is over.
func afterwards() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), cluster.Patience)
}

// together runs the same in several goroutines and returns the first error of any; the others end with it.
func together(ctx context.Context, count int, run func(ctx context.Context, number int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var first atomic.Pointer[error]
	for number := range count {
		all.Go(func() {
			if err := run(ctx, number); err != nil && first.CompareAndSwap(nil, &err) {
				cancel(err)
			}
		})
	}
	all.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}
