package clients

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// newSession tries until there is one; it is nil once the context has ended.
func newSession(ctx context.Context, client *clientv3.Client) *concurrency.Session {
	for ctx.Err() == nil {
		// A session that is asked for with the context would end with it, and could not be closed in order.
		lease, err := client.Grant(ctx, sessionSeconds)
		if err != nil {
			pause(ctx)
			continue
		}
		session, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID))
		if err == nil {
			return session
		}
		pause(ctx)
	}
	return nil
}

// closeSession tries until its lease is gone, and everything that was made with it.
func closeSession(session *concurrency.Session) error {
	if session == nil {
		return nil
	}
	session.Orphan()
	ctx, cancel := afterwards()
	defer cancel()
	for {
		_, err := session.Client().Revoke(ctx, session.Lease())
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		pause(ctx)
	}
}

// pause is what a client leaves between two tries.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lookEvery):
	}
}

func ended(session *concurrency.Session) bool {
	select {
	case <-session.Done():
		return true
	default:
		return false
	}
}
