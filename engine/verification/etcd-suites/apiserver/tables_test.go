package apiserver

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// shared are the tests that need nothing but a store, and that upstream runs on etcd3 and on the cache.
var shared = []struct {
	name string
	run  func(context.Context, *testing.T, storage.Interface)
}{
	{"CreateWithTTL", storagetesting.RunTestCreateWithTTL},
	{"CreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist},
	{"Get", storagetesting.RunTestGet},
	{"UnconditionalDelete", storagetesting.RunTestUnconditionalDelete},
	{"ConditionalDelete", storagetesting.RunTestConditionalDelete},
	{"DeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion},
	{"DeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict},
	{"DeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject},
	{"ValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion},
	{"ValidateDeletionWithOnlySuggestionValid", storagetesting.RunTestValidateDeletionWithOnlySuggestionValid},
	{"DeleteWithConflict", storagetesting.RunTestDeleteWithConflict},
	{"PreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion},
	{"PreconditionalDeleteWithOnlySuggestionPass", storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass},
	{"ListPaging", storagetesting.RunTestListPaging},
	{"GetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix},
	{"KeySchema", storagetesting.RunTestKeySchema},
	{"GuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL},
	{"GuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict},
	{"GuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict},
	{"Watch", storagetesting.RunTestWatch},
	{"DeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch},
	{"WatchFromNonZero", storagetesting.RunTestWatchFromNonZero},
	{"DelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery},
	{"WatcherTimeout", storagetesting.RunTestWatcherTimeout},
	{"WatchDeleteEventObjectHaveLatestRV", storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV},
	{"WatchInitializationSignal", storagetesting.RunTestWatchInitializationSignal},
	{"SendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility},
}

// semantics are those of watches that begin with what is there.
var semantics = []struct {
	name string
	run  func(context.Context, *testing.T, storage.Interface)
}{
	{"WatchSemantics", storagetesting.RunWatchSemantics},
	{"WatchSemanticInitialEventsExtended", storagetesting.RunWatchSemanticInitialEventsExtended},
	{"WatchListMatchSingle", storagetesting.RunWatchListMatchSingle},
}
