package clients

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	writers = 4
	// Few keys, so that each is put and deleted often.
	watchedKeys = 20
)

func TestWatch(t *testing.T) {
	whileLeadersDie(t, watchWorkload)
}

// Watches of everything, at each member and at whichever answers, see each revision once and in order, and end with
// what is there in the end.
var watchWorkload = workload{name: "watch", step: 200, run: func(ctx context.Context, t *testing.T, e environment) error {
	client := e.client(t)
	begin, err := client.Get(ctx, "any")
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	clients := []*clientv3.Client{client}
	for number := range e.cluster.Endpoints() {
		clients = append(clients, e.cluster.ClientOf(t, number))
	}
	watches := make([]*watched, len(clients))
	for number, client := range clients {
		watches[number] = watch(watching, client, begin.Header.Revision)
	}
	_ = together(ctx, writers, func(ctx context.Context, _ int) error {
		for ctx.Err() == nil {
			e.write(ctx, client)
		}
		return nil
	})
	for number, watch := range watches {
		if err := e.judge(client, watch); err != nil {
			return fmt.Errorf("watch %d: %w", number, err)
		}
	}
	return nil
}}

// write puts some keys or deletes one. Whether that was done is seen by the watches, if nobody else knows.
func (e environment) write(ctx context.Context, client *clientv3.Client) {
	key := func() string { return e.key(fmt.Sprintf("watched/%02d", rand.IntN(watchedKeys))) }
	var err error
	switch rand.IntN(4) {
	case 0:
		_, err = client.Delete(ctx, key())
	case 1:
		_, err = client.Delete(ctx, e.key("watched/1"), clientv3.WithPrefix())
	case 2:
		_, err = client.Txn(ctx).Then(clientv3.OpPut(e.key("watched/a"), "pair"), clientv3.OpPut(e.key("watched/b"), "pair")).Commit()
	default:
		_, err = client.Put(ctx, key(), fmt.Sprint(rand.Int64()))
	}
	if err == nil {
		e.progress()
	}
}

// watched is what one watch of all keys has seen.
type watched struct {
	// revision is the last that was seen.
	revision int64
	keys     map[string]string
	channel  clientv3.WatchChan
	seen     chan error
	reached  chan int64
}

// watch begins after a revision, and reads on until it has reached the one that is asked for.
func watch(ctx context.Context, client *clientv3.Client, revision int64) *watched {
	w := &watched{
		revision: revision, keys: map[string]string{},
		channel: client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(revision+1)),
		seen:    make(chan error, 1), reached: make(chan int64, 1),
	}
	go func() { w.seen <- w.readUntilAsked() }()
	return w
}

func (w *watched) readUntilAsked() error {
	last := int64(-1)
	for {
		select {
		case last = <-w.reached:
		case answer, open := <-w.channel:
			if !open {
				return errors.New("it ended")
			}
			if err := answer.Err(); err != nil {
				return err
			}
			if err := w.take(answer); err != nil {
				return err
			}
		}
		if last >= 0 && w.revision >= last {
			return nil
		}
	}
}

// take checks that an answer goes on where the last ended. Revisions come whole: none is in two answers.
func (w *watched) take(answer clientv3.WatchResponse) error {
	before := w.revision
	changed := map[string]bool{}
	for _, event := range answer.Events {
		revision, key := event.Kv.ModRevision, string(event.Kv.Key)
		if revision == w.revision+1 {
			clear(changed)
			w.revision = revision
		} else if revision != w.revision || revision == before {
			return fmt.Errorf("an event of revision %d came after revision %d", revision, w.revision)
		}
		if changed[key] {
			return fmt.Errorf("%s changes twice at revision %d", key, revision)
		}
		changed[key] = true
		_, existed := w.keys[key]
		switch {
		case event.Type == clientv3.EventTypeDelete:
			delete(w.keys, key)
		case event.IsCreate() && existed:
			return fmt.Errorf("%s is created at revision %d, and was there", key, revision)
		default:
			w.keys[key] = string(event.Kv.Value)
		}
	}
	if len(answer.Events) > 0 && answer.Header.Revision < w.revision {
		return fmt.Errorf("events of revision %d came below a header of %d", w.revision, answer.Header.Revision)
	}
	return nil
}

// judge waits until the watch has seen everything, and compares what it made of it with what was there then.
func (e environment) judge(client *clientv3.Client, w *watched) error {
	ctx, cancel := afterwards()
	defer cancel()
	last, err := client.Get(ctx, "any")
	if err != nil {
		return err
	}
	w.reached <- last.Header.Revision
	select {
	case err = <-w.seen:
	case <-ctx.Done():
		return fmt.Errorf("it has not seen revision %d yet", last.Header.Revision)
	}
	if err != nil {
		return err
	}
	prefix := e.key("watched/")
	found, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(w.revision))
	if err != nil {
		return err
	}
	there := map[string]string{}
	for _, pair := range found.Kvs {
		there[string(pair.Key)] = string(pair.Value)
	}
	maps.DeleteFunc(w.keys, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) })
	if !maps.Equal(w.keys, there) {
		return fmt.Errorf("at revision %d it has seen %v, and there was %v", w.revision, w.keys, there)
	}
	return nil
}

// All of it at once, on one cluster: sessions, locks, elections and leases beside the watches that see all of them.
func TestTogether(t *testing.T) {
	whileLeadersDie(t, mutexWorkload, electionWorkload, stmWorkload, keepAliveWorkload, sessionWorkload, watchWorkload)
}
