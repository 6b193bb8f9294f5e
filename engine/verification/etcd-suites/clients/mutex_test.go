package clients

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const lockers = 16

func TestMutex(t *testing.T) {
	whileLeadersDie(t, mutexWorkload)
}

// Many goroutines lock, and count what they find below the lock in a key: whoever is alone there loses no count.
var mutexWorkload = workload{name: "mutex", step: 40, run: func(ctx context.Context, t *testing.T, e environment) error {
	client := e.client(t)
	m := &mutexCheck{client: client, environment: e}
	err := together(ctx, lockers, func(ctx context.Context, _ int) error {
		for ctx.Err() == nil {
			if err := m.lockWithNewSession(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.judge()
}}

type mutexCheck struct {
	environment
	client  *clientv3.Client
	holders atomic.Int32
	// Counts that were acknowledged, and those of which nobody knows.
	counted, unknown atomic.Int64
}

// lockWithNewSession locks and unlocks until a call fails: then nobody knows whether its key is there, and the end of
// the session removes it.
func (m *mutexCheck) lockWithNewSession(ctx context.Context) error {
	session := newSession(ctx, m.client)
	if session == nil {
		return nil
	}
	var broken error
	mutex := concurrency.NewMutex(session, m.key("lock"))
	for broken == nil && mutex.Lock(ctx) == nil {
		if holders := m.holders.Add(1); holders != 1 {
			broken = fmt.Errorf("%d goroutines hold the lock", holders)
		} else {
			broken = m.countOne(ctx, mutex)
		}
		// A session that has ended has no lock that others would respect.
		if ended(session) {
			broken = errors.Join(broken, errors.New("the session ended while it was kept alive"))
		}
		m.holders.Add(-1)
		if mutex.Unlock(ctx) != nil {
			break
		}
	}
	return errors.Join(broken, closeSession(session))
}

// countOne adds one to the key, if the lock is still there: what a caller of etcd does that wants to be sure.
func (m *mutexCheck) countOne(ctx context.Context, mutex *concurrency.Mutex) error {
	key := m.key("count")
	found, err := m.client.Get(ctx, key)
	if err != nil {
		return nil
	}
	before, revision := 0, int64(0)
	if len(found.Kvs) == 1 {
		revision = found.Kvs[0].ModRevision
		if before, err = strconv.Atoi(string(found.Kvs[0].Value)); err != nil {
			return err
		}
	}
	put := clientv3.OpPut(key, strconv.Itoa(before+1))
	answer, err := m.client.Txn(ctx).If(mutex.IsOwner()).Then(
		clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)}, []clientv3.Op{put}, nil),
	).Commit()
	switch {
	case err != nil:
		m.unknown.Add(1)
		return nil
	case !answer.Succeeded:
		return errors.New("the lock was gone while it was held")
	case !answer.Responses[0].GetResponseTxn().Succeeded && m.unknown.Load() == 0:
		// A count of which nobody knows may still come; nothing else may.
		return fmt.Errorf("somebody else counted below the lock, after revision %d", revision)
	case answer.Responses[0].GetResponseTxn().Succeeded:
		m.counted.Add(1)
		m.progress()
	}
	return nil
}

func (m *mutexCheck) judge() error {
	ctx, cancel := afterwards()
	defer cancel()
	found, err := m.client.Get(ctx, m.key("count"))
	if err != nil {
		return err
	}
	if len(found.Kvs) != 1 {
		return fmt.Errorf("%d keys hold the count", len(found.Kvs))
	}
	total, err := strconv.ParseInt(string(found.Kvs[0].Value), 10, 64)
	if err != nil {
		return err
	}
	counted, unknown := m.counted.Load(), m.unknown.Load()
	if total < counted || total > counted+unknown {
		return fmt.Errorf("the count is %d: %d were acknowledged, and %d may have been", total, counted, unknown)
	}
	return nil
}
