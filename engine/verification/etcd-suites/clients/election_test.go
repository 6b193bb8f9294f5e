package clients

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	candidates = 8
	observers  = 2
)

func TestElection(t *testing.T) {
	whileLeadersDie(t, electionWorkload)
}

// Candidates campaign, proclaim and resign; observers see them follow each other.
var electionWorkload = workload{name: "election", step: 20, run: func(ctx context.Context, t *testing.T, e environment) error {
	check := &electionCheck{environment: e, client: e.client(t)}
	return together(ctx, candidates+observers, func(ctx context.Context, number int) error {
		for ctx.Err() == nil {
			var err error
			if number < candidates {
				err = check.campaignWithNewSession(ctx, number)
			} else {
				err = check.observe(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}}

type electionCheck struct {
	environment
	client  *clientv3.Client
	leaders atomic.Int32
}

// campaignWithNewSession leads and resigns until a call fails, upon which the session's end resigns for it.
func (c *electionCheck) campaignWithNewSession(ctx context.Context, number int) error {
	session := newSession(ctx, c.client)
	if session == nil {
		return nil
	}
	var broken error
	election := concurrency.NewElection(session, c.key("leader"))
	for term := 0; broken == nil && election.Campaign(ctx, fmt.Sprintf("%d elected %d", number, term)) == nil; term++ {
		if leaders := c.leaders.Add(1); leaders != 1 {
			broken = fmt.Errorf("%d candidates lead", leaders)
		} else {
			broken = c.lead(ctx, election, fmt.Sprintf("%d proclaimed %d", number, term))
		}
		if ended(session) {
			broken = errors.Join(broken, errors.New("the session ended while it was kept alive"))
		}
		c.leaders.Add(-1)
		if election.Resign(ctx) != nil {
			break
		}
	}
	return errors.Join(broken, closeSession(session))
}

func (c *electionCheck) lead(ctx context.Context, election *concurrency.Election, proclaimed string) error {
	err := election.Proclaim(ctx, proclaimed)
	if errors.Is(err, concurrency.ErrElectionNotLeader) {
		return errors.New("a leader that nobody followed was told that it does not lead")
	}
	if err != nil {
		return nil
	}
	leader, err := election.Leader(ctx)
	if errors.Is(err, concurrency.ErrElectionNoLeader) {
		return errors.New("there was no leader while one led")
	}
	if err != nil {
		return nil
	}
	if found := leader.Kvs[0]; string(found.Value) != proclaimed || string(found.Key) != election.Key() {
		return fmt.Errorf("%q of %s led while %q of %s did", found.Value, found.Key, proclaimed, election.Key())
	}
	c.progress()
	return nil
}

// observe follows the leaders until its stream ends, as it does when a member is lost. Leaders come in the order in
// which they began to campaign, and what each proclaims in its own.
func (c *electionCheck) observe(ctx context.Context) error {
	session := newSession(ctx, c.client)
	if session == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var created, modified int64
	var broken error
	for seen := range concurrency.NewElection(session, c.key("leader")).Observe(ctx) {
		leader := seen.Kvs[0]
		if leader.CreateRevision < created || leader.CreateRevision == created && leader.ModRevision <= modified {
			broken = fmt.Errorf("%q of revisions %d and %d was observed after %d and %d",
				leader.Value, leader.CreateRevision, leader.ModRevision, created, modified)
			break
		}
		created, modified = leader.CreateRevision, leader.ModRevision
	}
	return errors.Join(broken, closeSession(session))
}
