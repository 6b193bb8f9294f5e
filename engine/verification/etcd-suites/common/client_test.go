package common

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3/command"
	"go.etcd.io/etcd/tests/v3/framework/config"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// client is etcd's, with what it asks for as the tests say it. What is not here they call as clientv3 has it.
type client struct {
	*clientv3.Client
}

func (c client) Put(ctx context.Context, key, value string, asked config.PutOptions) error {
	ctx, cancel := within(ctx, asked.Timeout)
	defer cancel()
	_, err := c.Client.Put(ctx, key, value, clientv3.WithLease(asked.LeaseID))
	return err
}

func (c client) Get(ctx context.Context, key string, asked config.GetOptions) (*clientv3.GetResponse, error) {
	ctx, cancel := within(ctx, asked.Timeout)
	defer cancel()
	options := rangeOptions(asked.Prefix, asked.FromKey, asked.End)
	options = append(options, clientv3.WithRev(int64(asked.Revision)), clientv3.WithLimit(int64(asked.Limit)))
	if asked.Serializable {
		options = append(options, clientv3.WithSerializable())
	}
	if asked.CountOnly {
		options = append(options, clientv3.WithCountOnly())
	}
	if asked.SortBy != clientv3.SortByKey || asked.Order != clientv3.SortNone {
		options = append(options, clientv3.WithSort(asked.SortBy, asked.Order))
	}
	return c.Client.Get(ctx, key, options...)
}

func (c client) Delete(ctx context.Context, key string, asked config.DeleteOptions) (*clientv3.DeleteResponse, error) {
	return c.Client.Delete(ctx, key, rangeOptions(asked.Prefix, asked.FromKey, asked.End)...)
}

func (c client) Watch(ctx context.Context, key string, asked config.WatchOptions) clientv3.WatchChan {
	options := rangeOptions(asked.Prefix, false, asked.RangeEnd)
	return c.Client.Watch(ctx, key, append(options, clientv3.WithRev(asked.Revision))...)
}

func rangeOptions(prefix, fromKey bool, end string) []clientv3.OpOption {
	var options []clientv3.OpOption
	if prefix {
		options = append(options, clientv3.WithPrefix())
	}
	if fromKey {
		options = append(options, clientv3.WithFromKey())
	}
	if end != "" {
		options = append(options, clientv3.WithRange(end))
	}
	return options
}

// Txn takes comparisons and operations in the language of `etcdctl txn`.
func (c client) Txn(ctx context.Context, compares, success, failure []string, _ config.TxnOptions) (*clientv3.TxnResponse, error) {
	var comparisons []clientv3.Cmp
	for _, text := range compares {
		comparison, err := command.ParseCompare(text)
		if err != nil {
			return nil, err
		}
		comparisons = append(comparisons, *comparison)
	}
	then, err := operations(success)
	if err != nil {
		return nil, err
	}
	otherwise, err := operations(failure)
	if err != nil {
		return nil, err
	}
	return c.Client.Txn(ctx).If(comparisons...).Then(then...).Else(otherwise...).Commit()
}

func operations(lines []string) ([]clientv3.Op, error) {
	var parsed []clientv3.Op
	for _, line := range lines {
		words := command.Argify(line)
		switch {
		case len(words) == 2 && words[0] == "get":
			parsed = append(parsed, clientv3.OpGet(words[1]))
		case len(words) == 2 && words[0] == "del":
			parsed = append(parsed, clientv3.OpDelete(words[1]))
		case len(words) == 3 && words[0] == "put":
			parsed = append(parsed, clientv3.OpPut(words[1], words[2]))
		default:
			return nil, fmt.Errorf("no operation that is known here: %s", line)
		}
	}
	return parsed, nil
}

func (c client) Compact(ctx context.Context, revision int64, asked config.CompactOption) (*clientv3.CompactResponse, error) {
	ctx, cancel := within(ctx, asked.Timeout)
	defer cancel()
	var options []clientv3.CompactOption
	if asked.Physical {
		options = append(options, clientv3.WithCompactPhysical())
	}
	return c.Client.Compact(ctx, revision, options...)
}

func (c client) Status(ctx context.Context) ([]*clientv3.StatusResponse, error) {
	return ofEach(c, func(endpoint string) (*clientv3.StatusResponse, error) { return c.Client.Status(ctx, endpoint) })
}

func (c client) HashKV(ctx context.Context, revision int64) ([]*clientv3.HashKVResponse, error) {
	return ofEach(c, func(endpoint string) (*clientv3.HashKVResponse, error) {
		return c.Client.HashKV(ctx, endpoint, revision)
	})
}

func (c client) Defragment(ctx context.Context, asked config.DefragOption) error {
	ctx, cancel := within(ctx, asked.Timeout)
	defer cancel()
	_, err := ofEach(c, func(endpoint string) (*clientv3.DefragmentResponse, error) {
		return c.Client.Defragment(ctx, endpoint)
	})
	return err
}

func ofEach[Answer any](c client, call func(endpoint string) (Answer, error)) ([]Answer, error) {
	var answers []Answer
	for _, endpoint := range c.Endpoints() {
		answer, err := call(endpoint)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", endpoint, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (c client) Health(ctx context.Context) error {
	answer, err := healthpb.NewHealthClient(c.ActiveConnection()).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && answer.Status != healthpb.HealthCheckResponse_SERVING {
		err = fmt.Errorf("it is %v", answer.Status)
	}
	return err
}

func (c client) TimeToLive(ctx context.Context, id clientv3.LeaseID, asked config.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	var options []clientv3.LeaseOption
	if asked.WithAttachedKeys {
		options = append(options, clientv3.WithAttachedKeys())
	}
	return c.Client.TimeToLive(ctx, id, options...)
}

func (c client) MemberList(ctx context.Context, serializable bool) (*clientv3.MemberListResponse, error) {
	if serializable {
		return c.Client.MemberList(ctx, clientv3.WithSerializable())
	}
	return c.Client.MemberList(ctx)
}

func (c client) MemberAdd(ctx context.Context, _ string, peers []string) (*clientv3.MemberAddResponse, error) {
	return c.Client.MemberAdd(ctx, peers)
}

func (c client) MemberAddAsLearner(ctx context.Context, _ string, peers []string) (*clientv3.MemberAddResponse, error) {
	return c.Client.MemberAddAsLearner(ctx, peers)
}

func (c client) AuthEnable(ctx context.Context) error {
	_, err := c.Client.AuthEnable(ctx)
	return err
}

func (c client) AuthDisable(ctx context.Context) error {
	_, err := c.Client.AuthDisable(ctx)
	return err
}

func (c client) UserAdd(ctx context.Context, name, password string, asked config.UserAddOptions) (*clientv3.AuthUserAddResponse, error) {
	return c.UserAddWithOptions(ctx, name, password, &clientv3.UserAddOptions{NoPassword: asked.NoPassword})
}

func (c client) UserChangePass(ctx context.Context, name, password string) error {
	_, err := c.UserChangePassword(ctx, name, password)
	return err
}

// within ends a context after the limit, if there is one.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
