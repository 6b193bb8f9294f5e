package common

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// refused are the tests and cases of what DEngine does not serve, or not as etcd does, and why. docs/etcd.md says it
// for each call.
var refused = map[string]string{
	"TestAlarm":     "there is no quota of space: the alarm is raised and ends with what the disk has left",
	"TestMemberAdd": "MemberAdd is not served: a member is added by the id of its data directory, which the call lacks",
	"TestMemberRemove/StrictReconfigCheck/NoWaitForQuorum/Three": "etcd takes members for unhealthy until they have " +
		"been connected for five seconds; here they are healthy as soon as they answer the leader",
}

var skipped = map[string]bool{}

// skipIfRefused skips a test or a case on DEngine; etcd has to pass them all.
func skipIfRefused(t testing.TB) {
	t.Helper()
	if os.Getenv("ETCD_SUITES_DENGINE") == "" {
		return
	}
	if reason, is := refused[t.Name()]; is {
		skipped[t.Name()] = true
		fmt.Printf("%s is left out: %s\n", t.Name(), reason)
		t.SkipNow()
	}
}

// skipsAreCurrent says whether each refused test is there to be refused, once all of them had their turn.
func skipsAreCurrent() bool {
	if os.Getenv("ETCD_SUITES_DENGINE") == "" || isSet("test.run") || isSet("test.list") {
		return true
	}
	current := true
	for name := range refused {
		if !skipped[name] {
			fmt.Fprintf(os.Stderr, "%s is refused, and there is no such test\n", name)
			current = false
		}
	}
	return current
}

func isSet(name string) bool { return flag.Lookup(name).Value.String() != "" }
