package apiserver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/utils/clock"

	"dengine.io/verification/etcd-suites/cluster"
)

// cachedStore is a store below the cache of an API server.
type cachedStore struct {
	*cacher.CacheDelegator
	below *etcdStore
}

// indexed has the cache find pods by their node and namespace, as API servers do.
func indexed(config *cacher.Config) {
	pod := func(object any) *example.Pod { return object.(*example.Pod) }
	config.IndexerFuncs = storage.IndexerFuncs{
		"spec.nodeName": func(object runtime.Object) string { return pod(object).Spec.NodeName },
	}
	config.Indexers = &cache.Indexers{
		"f:spec.nodeName":      func(object any) ([]string, error) { return []string{pod(object).Spec.NodeName}, nil },
		"f:metadata.namespace": func(object any) ([]string, error) { return []string{pod(object).Namespace}, nil },
	}
}

// clusterScoped keeps pods without a namespace in their keys.
func clusterScoped(config *cacher.Config) {
	config.KeyFunc = func(object runtime.Object) (string, error) {
		return storage.NoNamespaceKeyFunc(resourcePrefix, object)
	}
}

func newCached(t *testing.T, options ...func(*cacher.Config)) *cachedStore {
	t.Helper()
	below := newStore(t, storeOptions{
		prefix: "/registry", transformer: identity.NewEncryptCheckTransformer(), leases: etcd3.NewDefaultLeaseManagerConfig(),
	})
	failing := &storagetesting.StorageInjectingListErrors{Interface: below.Interface, Errors: failingLists()}
	config := cacher.Config{
		Storage:             failing,
		Versioner:           below.Versioner(),
		GroupResource:       pods,
		EventsHistoryWindow: cacher.DefaultEventFreshDuration,
		ResourcePrefix:      resourcePrefix,
		KeyFunc: func(object runtime.Object) (string, error) {
			return storage.NamespaceKeyFunc(resourcePrefix, object)
		},
		GetAttrsFunc: podAttributes,
		NewFunc:      newPod,
		NewListFunc:  newPodList,
		Indexers:     &cache.Indexers{},
		Codec:        codecs.LegacyCodec(examplev1.SchemeGroupVersion),
		Clock:        clock.RealClock{},
	}
	for _, option := range options {
		option(&config)
	}
	made, err := cacher.NewCacherFromConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Stop)
	await(t, "the lists that fail", func() bool {
		consumed, _ := failing.ErrorsConsumed()
		return consumed
	})
	if err := made.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	delegator := cacher.NewCacheDelegator(made, failing)
	t.Cleanup(delegator.Stop)
	return &cachedStore{CacheDelegator: delegator, below: below}
}

// failingLists is one for a cache that is filled by lists, so that it has to try again. One that watches, from before
// the first object, does not list.
func failingLists() int {
	if clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		return 0
	}
	return 1
}

func podAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	pod, is := object.(*example.Pod)
	if !is {
		return nil, nil, fmt.Errorf("%T is no pod", object)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// compacted compacts the store, and waits for the cache to see that: it looks each 15 seconds.
func (c *cachedStore) compacted(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	var observed func() int64
	if utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot) {
		observed = c.CompactRevision
	}
	c.below.compact(ctx, t, resourceVersion, observed)
}

// stored and calls say nothing: the cache leaves both to the store below, which is tested by itself.
func stored(context.Context, *testing.T, string) {}
func calls(*testing.T, uint64, uint64)           {}

func TestCacher(t *testing.T) {
	ctx := context.Background()
	for _, test := range shared {
		t.Run(test.name, func(t *testing.T) { test.run(ctx, t, newCached(t)) })
	}
	for _, test := range semantics {
		t.Run(test.name, func(t *testing.T) { test.run(ctx, t, createdIsCached{newCached(t)}) })
	}
	for _, test := range cacherOnly {
		t.Run(test.name, func(t *testing.T) { test.run(ctx, t, newCached(t, test.options...)) })
	}
}

// cacherOnly are the tests that are called in another way than on etcd3. Upstream does not run these on its cache, and
// neither can we: GuaranteedUpdate, GuaranteedUpdateChecksStoredData, TransformationFailure, ListResourceVersionMatch,
// WatchError, WatchErrorIsBlockingFurtherEvents and WatchWithUnsafeDelete exchange the transformer below it, which it
// has used already; ListInconsistentContinuation, WatchContextCancel and ProgressNotify expect what only etcd3 does.
var cacherOnly = []struct {
	name    string
	run     func(context.Context, *testing.T, *cachedStore)
	options []func(*cacher.Config)
}{
	{name: "Create", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestCreate(ctx, t, c, stored)
	}},
	{name: "ListContinuation", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestListContinuation(ctx, t, c, calls)
	}},
	{name: "ListPaginationRareObject", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestListPaginationRareObject(ctx, t, c, calls)
	}},
	{name: "ListContinuationWithFilter", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, c, calls)
	}},
	{name: "NamespaceScopedList", options: []func(*cacher.Config){indexed}, run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestNamespaceScopedList(ctx, t, c)
	}},
	// Its second half compacts the cache's own events, which only the cache's package can: upstream skips it without.
	{name: "WatchFromZero", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestWatchFromZero(ctx, t, c, nil)
	}},
	{name: "ClusterScopedWatch", options: []func(*cacher.Config){clusterScoped, indexed}, run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestClusterScopedWatch(ctx, t, c)
	}},
	{name: "NamespaceScopedWatch", options: []func(*cacher.Config){indexed}, run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestNamespaceScopedWatch(ctx, t, c)
	}},
	{name: "WatchDispatchBookmarkEvents", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, c, true)
	}},
	{name: "OptionalWatchBookmarksWithCorrectResourceVersion", run: func(ctx context.Context, t *testing.T, c *cachedStore) {
		storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, c)
	}},
}

// Each way of the cache to answer lists: from etcd, from itself once etcd told it how far it has to be, from a snapshot.
func TestCacherLists(t *testing.T) {
	for _, consistent := range []bool{true, false} {
		for _, snapshots := range []bool{true, false} {
			t.Run(fmt.Sprintf("consistent=%v,snapshots=%v", consistent, snapshots), func(t *testing.T) {
				setFeature(t, features.ListFromCacheSnapshot, snapshots)
				if !consistent {
					// The last version in which it can be switched off.
					emulated := version.MustParse("1.33")
					featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t, utilfeature.DefaultFeatureGate, emulated)
					setFeature(t, features.ConsistentListFromCache, false)
				}
				runLists(t, consistent, snapshots)
			})
		}
	}
}

func runLists(t *testing.T, consistent, snapshots bool) {
	ctx := context.Background()
	t.Run("List", func(t *testing.T) {
		c := newCached(t)
		storagetesting.RunTestList(ctx, t, c, c.compacted, true, c.below.lists)
	})
	t.Run("ConsistentList", func(t *testing.T) {
		c := newCached(t)
		storagetesting.RunTestConsistentList(ctx, t, c, c.below.increaseRV, true, consistent, snapshots)
	})
	t.Run("GetListNonRecursive", func(t *testing.T) {
		c := newCached(t)
		storagetesting.RunTestGetListNonRecursive(ctx, t, c.below.increaseRV, c)
	})
}

// A cache is filled by a watch, unless that is switched off, as it was by default before 1.35.
func TestCacherFilledByLists(t *testing.T) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
	ctx := context.Background()
	t.Run("List", func(t *testing.T) {
		c := newCached(t)
		storagetesting.RunTestList(ctx, t, c, c.compacted, true, c.below.lists)
	})
	t.Run("Watch", func(t *testing.T) { storagetesting.RunTestWatch(ctx, t, newCached(t)) })
	t.Run("WatchSemantics", func(t *testing.T) {
		storagetesting.RunWatchSemantics(ctx, t, createdIsCached{newCached(t)})
	})
}

func TestCacherCompactRevision(t *testing.T) {
	setFeature(t, features.ListFromCacheSnapshot, true)
	c := newCached(t)
	storagetesting.RunTestCompactRevision(context.Background(), t, c, c.below.increaseRV, c.compacted)
}

func TestCacherStats(t *testing.T) {
	for _, sizes := range []bool{false, true} {
		t.Run(fmt.Sprintf("sizes=%v", sizes), func(t *testing.T) {
			setFeature(t, features.SizeBasedListCostEstimate, sizes)
			codec := codecs.LegacyCodec(examplev1.SchemeGroupVersion)
			storagetesting.RunTestStats(context.Background(), t, newCached(t), codec, identity.NewEncryptCheckTransformer(), sizes)
		})
	}
}

// createdIsCached waits until the cache has what was created: semantics of watches are about what it had before.
type createdIsCached struct{ *cachedStore }

func (c createdIsCached) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	if err := c.cachedStore.Create(ctx, key, object, out, ttl); err != nil {
		return err
	}
	return c.awaitCached(ctx, key, out)
}

func (c createdIsCached) awaitCached(ctx context.Context, key string, created runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.Patience)
	defer cancel()
	for {
		found := newPod()
		// Resource version 0 asks for whatever the cache has.
		err := c.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, found)
		if err != nil && !storage.IsNotFound(err) {
			return err
		}
		if err == nil && equality.Semantic.DeepEqual(found, created) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the cache does not get what was created")
		case <-time.After(lookEvery):
		}
	}
}
