package clients

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	accounts  = 8
	deposit   = 100
	transfers = 8
	readers   = 2
)

func TestSTM(t *testing.T) {
	whileLeadersDie(t, stmWorkload)
}

// Transfers between accounts: whoever looks at all of them finds the same sum.
var stmWorkload = workload{name: "stm", step: 60, run: func(ctx context.Context, t *testing.T, e environment) error {
	bank := &bank{environment: e, client: e.client(t)}
	if err := bank.open(ctx); err != nil {
		return err
	}
	err := together(ctx, transfers+readers, func(ctx context.Context, number int) error {
		for ctx.Err() == nil {
			if number < transfers {
				bank.transfer(ctx, number)
			} else if err := bank.look(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	last, cancel := afterwards()
	defer cancel()
	if _, err := bank.client.Get(last, bank.account(0)); err != nil {
		return err
	}
	return bank.look(last)
}}

type bank struct {
	environment
	client *clientv3.Client
}

func (b *bank) account(number int) string { return b.key("account/" + strconv.Itoa(number)) }

// open puts all accounts at once. Before the first kill nothing keeps it from it.
func (b *bank) open(ctx context.Context) error {
	puts := make([]clientv3.Op, accounts)
	for number := range accounts {
		puts[number] = clientv3.OpPut(b.account(number), strconv.Itoa(deposit))
	}
	_, err := b.client.Txn(ctx).Then(puts...).Commit()
	return err
}

// transfer counts as done when it is known to be; one of which nobody knows leaves the sum as it was, too.
func (b *bank) transfer(ctx context.Context, number int) {
	isolation := []concurrency.Isolation{concurrency.SerializableSnapshot, concurrency.Serializable}[number%2]
	from := rand.IntN(accounts)
	to := (from + 1 + rand.IntN(accounts-1)) % accounts
	amount := 1 + rand.IntN(deposit/4)
	_, err := concurrency.NewSTM(b.client, func(stm concurrency.STM) error {
		has, err := strconv.Atoi(stm.Get(b.account(from)))
		if err != nil {
			return err
		}
		other, err := strconv.Atoi(stm.Get(b.account(to)))
		if err != nil || has < amount {
			return err
		}
		stm.Put(b.account(from), strconv.Itoa(has-amount))
		stm.Put(b.account(to), strconv.Itoa(other+amount))
		return nil
	}, concurrency.WithIsolation(isolation), concurrency.WithAbortContext(ctx))
	if err == nil {
		b.progress()
	}
}

func (b *bank) look(ctx context.Context) error {
	found, err := b.client.Get(ctx, b.key("account/"), clientv3.WithPrefix())
	if err != nil {
		return nil
	}
	sum := 0
	for _, account := range found.Kvs {
		has, err := strconv.Atoi(string(account.Value))
		if err != nil || has < 0 {
			return fmt.Errorf("%s has %q", account.Key, account.Value)
		}
		sum += has
	}
	if len(found.Kvs) != accounts || sum != accounts*deposit {
		return fmt.Errorf("%d accounts have %d at revision %d", len(found.Kvs), sum, found.Header.Revision)
	}
	return nil
}
