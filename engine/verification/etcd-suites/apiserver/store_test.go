package apiserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"dengine.io/verification/etcd-suites/cluster"
)

// newEtcd3 is a store as upstream's tests of etcd3 make it.
func newEtcd3(t *testing.T, options cluster.Options) *etcdStore {
	t.Helper()
	leases := etcd3.NewDefaultLeaseManagerConfig()
	// Tests of expiry wait 30 s at most, and a lease that is used again lasts longer by this.
	leases.ReuseDurationSeconds = 1
	return newStore(t, storeOptions{
		transformer: storagetesting.NewPrefixTransformer([]byte("suite!"), false),
		leases:      leases,
		cluster:     options,
	})
}

func setFeature(t *testing.T, feature featuregate.Feature, on bool) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, feature, on)
}

// compacted compacts the store, and waits for its own watch to see that.
func (s *etcdStore) compacted(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	var observed func() int64
	if utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot) {
		observed = s.CompactRevision
	}
	s.compact(ctx, t, resourceVersion, observed)
}

func TestEtcd3(t *testing.T) {
	ctx := context.Background()
	for _, test := range append(shared, semantics...) {
		t.Run(test.name, func(t *testing.T) { test.run(ctx, t, newEtcd3(t, cluster.Options{})) })
	}
	for _, test := range etcd3Only {
		t.Run(test.name, func(t *testing.T) { test.run(ctx, t, newEtcd3(t, cluster.Options{Progress: test.progress})) })
	}
}

// etcd3Only are the tests that need to know what is below the store, or that upstream does not run on the cache.
var etcd3Only = []struct {
	name     string
	run      func(context.Context, *testing.T, *etcdStore)
	progress time.Duration
}{
	{name: "Create", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestCreate(ctx, t, s, s.checkStored)
	}},
	{name: "GetListNonRecursive", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestGetListNonRecursive(ctx, t, s.increaseRV, s)
	}},
	{name: "GuaranteedUpdate", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestGuaranteedUpdate(ctx, t, s, s.checkStored)
	}},
	{name: "GuaranteedUpdateChecksStoredData", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, s)
	}},
	{name: "TransformationFailure", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestTransformationFailure(ctx, t, s)
	}},
	{name: "List", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestList(ctx, t, s, s.compacted, false, s.lists)
	}},
	{name: "ConsistentList", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestConsistentList(ctx, t, s, s.increaseRV, false, true, false)
	}},
	{name: "ListContinuation", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestListContinuation(ctx, t, s, s.checkCalls)
	}},
	{name: "ListContinuationWithFilter", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestListContinuationWithFilter(ctx, t, s, s.checkCalls)
	}},
	{name: "ListInconsistentContinuation", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestListInconsistentContinuation(ctx, t, s, s.compacted)
	}},
	{name: "ListResourceVersionMatch", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestListResourceVersionMatch(ctx, t, s)
	}},
	{name: "NamespaceScopedList", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestNamespaceScopedList(ctx, t, s)
	}},
	{name: "ClusterScopedWatch", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestClusterScopedWatch(ctx, t, s)
	}},
	{name: "NamespaceScopedWatch", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestNamespaceScopedWatch(ctx, t, s)
	}},
	{name: "WatchFromZero", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestWatchFromZero(ctx, t, s, s.compacted)
	}},
	{name: "WatchError", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestWatchError(ctx, t, s)
	}},
	{name: "WatchErrorIsBlockingFurtherEvents", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, s)
	}},
	{name: "WatchContextCancel", run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestWatchContextCancel(ctx, t, s)
	}},
	{name: "ProgressNotify", progress: time.Second, run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunOptionalTestProgressNotify(ctx, t, s, s.increaseRV)
	}},
	{name: "WatchDispatchBookmarkEvents", progress: time.Second, run: func(ctx context.Context, t *testing.T, s *etcdStore) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, false)
	}},
}

// Tests that change how stores are made set it up before there is one.

func TestEtcd3CompactRevision(t *testing.T) {
	// The store watches the key of compactions only with this.
	setFeature(t, features.ListFromCacheSnapshot, true)
	s := newEtcd3(t, cluster.Options{})
	storagetesting.RunTestCompactRevision(context.Background(), t, s, s.increaseRV, s.compacted)
}

func TestEtcd3ListPaginationRareObject(t *testing.T) {
	// It reads the key of compactions, and reads are counted.
	setFeature(t, features.ListFromCacheSnapshot, false)
	s := newEtcd3(t, cluster.Options{})
	storagetesting.RunTestListPaginationRareObject(context.Background(), t, s, s.checkCalls)
}

func TestEtcd3Stats(t *testing.T) {
	for _, sizes := range []bool{false, true} {
		t.Run(fmt.Sprintf("sizes=%v", sizes), func(t *testing.T) {
			s := newEtcd3(t, cluster.Options{})
			if sizes {
				if err := s.EnableResourceSizeEstimation(s.keys); err != nil {
					t.Fatal(err)
				}
			}
			storagetesting.RunTestStats(context.Background(), t, s, s.codec, s.switched, sizes)
		})
	}
}

func TestEtcd3WatchWithUnsafeDelete(t *testing.T) {
	setFeature(t, features.AllowUnsafeMalformedObjectDeletion, true)
	storagetesting.RunTestWatchWithUnsafeDelete(context.Background(), t, newEtcd3(t, cluster.Options{}))
}

func TestEtcd3WatchSemanticsWithConcurrentDecode(t *testing.T) {
	setFeature(t, features.ConcurrentWatchObjectDecode, true)
	storagetesting.RunWatchSemantics(context.Background(), t, newEtcd3(t, cluster.Options{}))
}

// checkCalls compares how many objects and pages a list has read with what it had to. An API server that finds too
// little in a page doubles the next, up to 10,000.
func (s *etcdStore) checkCalls(t *testing.T, pageSize, objects uint64) {
	t.Helper()
	if read := s.prefixTransformer().GetReadsAndReset(); read != objects {
		t.Errorf("%d objects were read, and %d had to be", read, objects)
	}
	const largest = 10_000
	pages := uint64(1)
	for read, size := uint64(1), pageSize; pageSize > 0 && read < objects; pages++ {
		size = min(2*size, largest)
		read += size
	}
	if read := s.reads.GetReadsAndReset(); read != pages {
		t.Errorf("%d pages were read, and %d had to be", read, pages)
	}
}
