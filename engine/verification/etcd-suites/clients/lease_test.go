package clients

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"dengine.io/verification/etcd-suites/cluster"
)

const (
	keepers      = 4
	leaseSeconds = 5
)

func TestKeepAlive(t *testing.T) {
	whileLeadersDie(t, keepAliveWorkload)
}

// Leases that are kept alive one by one: until a time to live after it was last asked for, each is there with its key.
var keepAliveWorkload = workload{name: "keep-alive", step: 40, run: func(ctx context.Context, t *testing.T, e environment) error {
	client := e.client(t)
	return together(ctx, keepers, func(ctx context.Context, number int) error {
		keeper := &keeper{environment: e, client: client, leased: e.key(fmt.Sprintf("leased/%d", number))}
		for ctx.Err() == nil {
			if err := keeper.keepOne(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}}

type keeper struct {
	environment
	client *clientv3.Client
	leased string
	// until is when the lease may end: a time to live after the beginning of the last call that made it last.
	until time.Time
}

// keepOne keeps a lease until it ended because no call succeeded for its whole time, or the workload is over.
func (k *keeper) keepOne(ctx context.Context) error {
	begun := time.Now()
	lease, err := k.client.Grant(ctx, leaseSeconds)
	if err != nil {
		pause(ctx)
		return nil
	}
	k.lasts(begun, lease.TTL)
	if _, err := k.client.Put(ctx, k.leased, "kept", clientv3.WithLease(lease.ID)); err != nil {
		return k.ended(err, "a put")
	}
	for ctx.Err() == nil {
		begun := time.Now()
		kept, err := k.client.KeepAliveOnce(ctx, lease.ID)
		if err != nil {
			if k.over() || errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return k.ended(err, "a keep-alive")
			}
			continue
		}
		k.lasts(begun, kept.TTL)
		if err := k.look(ctx, lease.ID); err != nil {
			return err
		}
		if k.over() {
			return nil
		}
	}
	return nil
}

func (k *keeper) lasts(begun time.Time, seconds int64) {
	k.until = begun.Add(time.Duration(seconds) * time.Second)
}

func (k *keeper) over() bool { return !time.Now().Before(k.until) }

// ended says whether the lease was lost too early.
func (k *keeper) ended(err error, call string) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) && !k.over() {
		return fmt.Errorf("%s found no lease %v before its time", call, time.Until(k.until))
	}
	return nil
}

func (k *keeper) look(ctx context.Context, lease clientv3.LeaseID) error {
	found, err := k.client.Get(ctx, k.leased)
	if err != nil || k.over() {
		return nil
	}
	if len(found.Kvs) != 1 || found.Kvs[0].Lease != int64(lease) {
		return fmt.Errorf("the key of lease %x was gone %v before its time: %v", lease, time.Until(k.until), found.Kvs)
	}
	lasts, err := k.client.TimeToLive(ctx, lease, clientv3.WithAttachedKeys())
	if err != nil || k.over() {
		return nil
	}
	if lasts.TTL < 0 || len(lasts.Keys) != 1 || string(lasts.Keys[0]) != k.leased {
		return fmt.Errorf("lease %x lasts %d s with keys %q, %v before its time", lease, lasts.TTL, lasts.Keys, time.Until(k.until))
	}
	k.progress()
	return nil
}

func TestSession(t *testing.T) {
	whileLeadersDie(t, sessionWorkload)
}

// A session lasts while leaders come and go: its keep-alives are repeated until they are answered.
var sessionWorkload = workload{name: "session", step: 40, run: func(ctx context.Context, t *testing.T, e environment) error {
	client := e.client(t)
	session := newSession(ctx, client)
	if session == nil {
		return nil
	}
	for ctx.Err() == nil {
		lasts, err := client.TimeToLive(ctx, session.Lease())
		switch {
		case ended(session):
			return errors.New("the session ended while it was kept alive")
		case err != nil:
			pause(ctx)
		case lasts.TTL < 0:
			return errors.New("there is no lease of a session that was kept alive")
		default:
			e.progress()
		}
	}
	return closeSession(session)
}}

// A lease that nobody keeps alive ends with its keys, in one revision, and not before its time.
func TestExpiry(t *testing.T) {
	client := cluster.Start(t).Client(t)
	ctx, cancel := afterwards()
	defer cancel()
	begun := time.Now()
	lease, err := client.Grant(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("suite/expiry-%d/", begun.UnixNano())
	var puts []clientv3.Op
	for number := range 10 {
		puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%d", prefix, number), "", clientv3.WithLease(lease.ID)))
	}
	put, err := client.Txn(ctx).Then(puts...).Commit()
	if err != nil {
		t.Fatal(err)
	}
	watch := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(put.Header.Revision+1))
	seen := <-watch
	if err := seen.Err(); err != nil || len(seen.Events) != len(puts) {
		t.Fatalf("%d events of %d deletes: %v", len(seen.Events), len(puts), err)
	}
	if lasted := time.Since(begun); lasted < time.Duration(lease.TTL)*time.Second {
		t.Errorf("the lease of %d s ended after %v", lease.TTL, lasted)
	}
	for _, event := range seen.Events {
		if event.Type != clientv3.EventTypeDelete || event.Kv.ModRevision != seen.Events[0].Kv.ModRevision {
			t.Errorf("%s of %s at revision %d", event.Type, event.Kv.Key, event.Kv.ModRevision)
		}
	}
	if _, err := client.KeepAliveOnce(ctx, lease.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("a keep-alive of a lease that ended: %v", err)
	}
}
