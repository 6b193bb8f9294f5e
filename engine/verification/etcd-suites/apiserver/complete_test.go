package apiserver

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// Every function with which upstream tests a store is called here: a newer version may have more of them. Benchmarks
// judge nothing.
func TestEveryFunctionIsCalled(t *testing.T) {
	one := runtime.FuncForPC(reflect.ValueOf(storagetesting.RunTestGet).Pointer())
	file, _ := one.FileLine(one.Entry())
	offered := names(t, filepath.Dir(file), `(?m)^func (Run\w+)\(`)
	called := names(t, ".", `storagetesting\.(Run\w+)`)
	if len(offered) == 0 {
		t.Fatalf("no functions in %s", filepath.Dir(file))
	}
	for name := range offered {
		if !called[name] && !strings.HasPrefix(name, "RunBenchmark") {
			t.Errorf("%s is not called", name)
		}
	}
}

// The storage whose tests these are is that of the Kubernetes that runs on DEngine elsewhere in this tree.
func TestVersionIsOfTheLocalKubernetes(t *testing.T) {
	tested := required(t, "../go.mod")
	runs := required(t, "../../../../e2e/local-kubernetes/programs/kubernetes/go.mod")
	if tested != runs {
		t.Errorf("the tests are of k8s.io/apiserver %s, and the local Kubernetes has %s", tested, runs)
	}
}

func required(t *testing.T, moduleFile string) string {
	t.Helper()
	text, err := os.ReadFile(moduleFile)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`k8s\.io/apiserver (v\S+)`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s requires no k8s.io/apiserver", moduleFile)
	}
	return string(found[1])
}

func names(t *testing.T, folder, pattern string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
	}
	return found
}
