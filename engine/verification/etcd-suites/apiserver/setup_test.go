// Package apiserver runs the tests that the storage of Kubernetes' API servers has to pass, on a store in the cluster:
// by itself, as etcd3, and below the API server's cache.
package apiserver

import (
	"context"
	"errors"
	"path"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"dengine.io/verification/etcd-suites/cluster"
)

const (
	resourcePrefix = "/pods/"
	lookEvery      = 20 * time.Millisecond
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
	pods   = schema.GroupResource{Resource: "pods"}
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

func newPod() runtime.Object     { return &example.Pod{} }
func newPodList() runtime.Object { return &example.PodList{} }

// etcdStore is upstream's store with what its tests want to know about it.
type etcdStore struct {
	storage.Interface
	client   *kubernetes.Client
	codec    runtime.Codec
	lists    *storagetesting.KubernetesRecorder
	reads    *storagetesting.KVRecorder
	switched *switchedTransformer
	prefix   string
}

// storeOptions are what upstream's tests of the store and of the cache have differently.
type storeOptions struct {
	// prefix is that of all keys; the tests leave it out.
	prefix      string
	transformer value.Transformer
	leases      etcd3.LeaseManagerConfig
	cluster     cluster.Options
}

// newStore makes one in a cluster of its own. In one that somebody else serves, all keys are deleted: tests count what
// they find.
func newStore(t *testing.T, options storeOptions) *etcdStore {
	t.Helper()
	served := cluster.StartWith(t, options.cluster)
	client, err := kubernetes.New(served.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := &etcdStore{client: client, prefix: options.prefix, codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)}
	s.reads, s.lists = storagetesting.NewKVRecorder(client.KV), storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV, client.Kubernetes = s.reads, s.lists
	if !served.Fresh {
		if _, err := client.KV.Delete(context.Background(), "\x00", clientv3.WithFromKey()); err != nil {
			t.Fatal(err)
		}
	}
	s.switched = &switchedTransformer{}
	s.switched.current.Store(&options.transformer)
	versioner := storage.APIObjectVersioner{}
	compactor := etcd3.NewCompactor(client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	store, err := etcd3.New(client, compactor, s.codec, newPod, newPodList, s.prefix, resourcePrefix, pods, s.switched,
		options.leases, etcd3.NewDefaultDecoder(s.codec, versioner), versioner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	s.Interface = store
	return s
}

// checkStored is what has to be true of each object that a test has written.
func (s *etcdStore) checkStored(ctx context.Context, t *testing.T, key string) {
	found, err := s.client.KV.Get(ctx, path.Join("/", s.prefix, key))
	if err != nil || len(found.Kvs) != 1 {
		t.Fatalf("%d keys at %s: %v", len(found.Kvs), key, err)
	}
	plain, _, err := s.switched.TransformFromStorage(ctx, found.Kvs[0].Value, value.DefaultContext(key))
	if err != nil {
		t.Fatal(err)
	}
	object, err := runtime.Decode(s.codec, plain)
	if err != nil {
		t.Fatal(err)
	}
	if pod := object.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("resource version %q and self link %q are stored in %s", pod.ResourceVersion, pod.SelfLink, key)
	}
}

func (s *etcdStore) increaseRV(ctx context.Context, t *testing.T) int64 {
	put, err := s.client.KV.Put(ctx, "increaseRV", "ok")
	if err != nil {
		t.Fatal(err)
	}
	return put.Header.Revision
}

// compact compacts as an API server does, and waits until the store knows, if it is to: `observed` says so.
func (s *etcdStore) compact(ctx context.Context, t *testing.T, resourceVersion string, observed func() int64) {
	t.Helper()
	revision, err := s.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	// The first call fails if another compacted before; it then has the time that the next one needs.
	compactTime, _, _, err := etcd3.Compact(ctx, s.client.Client, 0, int64(revision))
	if err != nil {
		_, _, _, err = etcd3.Compact(ctx, s.client.Client, compactTime, int64(revision))
	}
	if err != nil {
		t.Fatal(err)
	}
	if observed != nil {
		await(t, "the compaction to be observed", func() bool { return observed() == int64(revision) })
	}
}

// keys lists those of all pods, which statistics start from.
func (s *etcdStore) keys(ctx context.Context) ([]string, error) {
	prefix := path.Join("/", s.prefix, resourcePrefix) + "/"
	found, err := s.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, pair := range found.Kvs {
		keys = append(keys, string(pair.Key))
	}
	return keys, nil
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(lookEvery) {
		if time.Since(begun) > cluster.Patience {
			t.Fatalf("waited %v for %s", cluster.Patience, what)
		}
	}
}

// switchedTransformer passes everything to another one, which tests exchange while the store is in use.
type switchedTransformer struct {
	current atomic.Pointer[value.Transformer]
}

func (s *switchedTransformer) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	return (*s.current.Load()).TransformFromStorage(ctx, data, about)
}

func (s *switchedTransformer) TransformToStorage(ctx context.Context, data []byte, about value.Context) ([]byte, error) {
	return (*s.current.Load()).TransformToStorage(ctx, data, about)
}

// exchange returns what undoes it.
func (s *switchedTransformer) exchange(next value.Transformer) func() {
	before := s.current.Swap(&next)
	return func() { s.current.Store(before) }
}

// UpdatePrefixTransformer is asked for by tests of InterfaceWithPrefixTransformer.
func (s *etcdStore) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	changed := *s.prefixTransformer()
	return s.switched.exchange(modify(&changed))
}

func (s *etcdStore) prefixTransformer() *storagetesting.PrefixTransformer {
	return (*s.switched.current.Load()).(*storagetesting.PrefixTransformer)
}

// CorruptTransformer is asked for by tests of InterfaceWithCorruptTransformer.
func (s *etcdStore) CorruptTransformer() func() {
	return s.switched.exchange(etcd3.WithCorruptObjErrorHandlingTransformer(corrupt{}))
}

// corrupt is a transformer that cannot read anything.
type corrupt struct{}

func (corrupt) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, errors.New("it cannot be read")
}

func (corrupt) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}
