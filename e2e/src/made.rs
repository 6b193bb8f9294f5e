//! What the demo made in a Kubernetes that is not ours is marked, and only that is removed: people
//! may have made the same by the README, under the same names. What cannot be told is left as it
//! is.

use anyhow::Result;

use crate::install::{NAMESPACE, RELEASE};

/// On what the demo made and nobody had made before.
const MARK: &str = "dengine.io/made-by=demo";
/// What the chart calls the operator's Deployment in the demo's release. With it goes the mark, so
/// that a release that somebody installs later has none.
pub const DEPLOYMENT: &str = "dengine-operator";
const CRDS: [&str; 2] = ["dengineclusters.dengine.io", "denginebenchmarks.dengine.io"];

/// Runs `kubectl`, or `helm`, with these arguments.
pub type Run<'a> = &'a dyn Fn(&[&str]) -> Result<String>;

/// Has an object made, or changed, and marks it if it was not there before.
///
/// # Errors
/// When `kubectl` fails, or whoever makes it.
pub fn make(
    kubectl: Run<'_>,
    namespace: &str,
    kind: &str,
    name: &str,
    make: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let namespace = format!("--namespace={namespace}");
    let object = ["get", &namespace, kind, name];
    let was_there = !is_empty(kubectl, &object)?;
    let made = make();
    if was_there {
        return made;
    }
    let marked = kubectl(&["label", &namespace, kind, name, MARK, "--overwrite"]);
    // Of what was made in part there may be nothing to mark.
    made.and(marked.map(drop))
}

/// Removes what is marked: the cluster with its volumes, its benchmarks, the operator with its
/// namespace, and the CRDs unless somebody else uses them. Answers what stays, in words.
///
/// # Errors
/// When the API server refuses, or does not say what there is.
pub fn remove(
    kubectl: Run<'_>,
    helm: Run<'_>,
    namespace: &str,
    cluster: &str,
) -> Result<Vec<String>> {
    if !is_empty(kubectl, &["get", "crd", CRDS[0]])? {
        remove_cluster(kubectl, namespace, cluster)?;
    }
    let in_namespace = format!("--namespace={NAMESPACE}");
    let marked = format!("--selector={MARK}");
    if is_empty(kubectl, &["get", &in_namespace, "deployments", &marked])? {
        let stays = format!(
            "the release {RELEASE} in {NAMESPACE}, and the CRDs: the demo did not make them"
        );
        return Ok(vec![stays]);
    }
    helm(&[
        "uninstall",
        RELEASE,
        "--namespace",
        NAMESPACE,
        "--ignore-not-found",
        "--wait",
    ])?;
    let mut stays = Vec::new();
    let is_ours = !is_empty(kubectl, &["get", "namespaces", &marked])?;
    if is_ours && is_empty(kubectl, &["get", &in_namespace, "deployments"])? {
        kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    } else {
        stays.push(format!("the namespace {NAMESPACE}"));
    }
    for crd in CRDS {
        if is_empty(kubectl, &["get", "crd", crd])? {
            continue;
        }
        // With a CRD goes everything of its kind, so whoever cannot be asked whether there is
        // something keeps it.
        if is_empty(kubectl, &["get", crd, "--all-namespaces"])? {
            kubectl(&["delete", "crd", crd, "--ignore-not-found"])?;
        } else {
            stays.push(format!("the CRD {crd}, which is still in use"));
        }
    }
    Ok(stays)
}

fn remove_cluster(kubectl: Run<'_>, namespace: &str, cluster: &str) -> Result<()> {
    let in_namespace = format!("--namespace={namespace}");
    let marked = format!("--selector={MARK}");
    let of_cluster = format!("--selector=dengine.io/cluster={cluster}");
    kubectl(&["delete", &in_namespace, "denginebenchmarks", &marked])?;
    if is_empty(kubectl, &["get", &in_namespace, "dengineclusters", &marked])? {
        return Ok(());
    }
    kubectl(&[
        "delete",
        &in_namespace,
        "dengineclusters",
        &marked,
        "--cascade=foreground",
    ])?;
    let volumes = ["persistentvolumeclaims", &of_cluster];
    kubectl(&["delete", &in_namespace, volumes[0], volumes[1]])?;
    Ok(())
}

/// Whether nothing of it is there. That `kubectl` fails says nothing.
fn is_empty(kubectl: Run<'_>, get: &[&str]) -> Result<bool> {
    let asked = [get, &["--ignore-not-found", "--output=name"]].concat();
    Ok(kubectl(&asked)?.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    /// A Kubernetes whose answers to `get` are these, by a word of what is asked; others are empty.
    /// One that begins with `!` is an error.
    struct Fake {
        answers: Vec<(&'static str, &'static str)>,
        did: RefCell<Vec<String>>,
    }

    impl Fake {
        fn new(answers: &[(&'static str, &'static str)]) -> Self {
            Self {
                answers: answers.to_vec(),
                did: RefCell::default(),
            }
        }

        fn run(&self, arguments: &[&str]) -> Result<String> {
            let line = arguments.join(" ");
            if arguments[0] != "get" {
                self.did.borrow_mut().push(line);
                return Ok(String::new());
            }
            let fits = |(words, _): &&(&str, &str)| line.starts_with(words);
            match self.answers.iter().find(fits).map(|(_, answer)| *answer) {
                Some(error) if error.starts_with('!') => bail!("{error}"),
                answer => Ok(answer.unwrap_or_default().to_owned()),
            }
        }

        fn remove(&self) -> Result<Vec<String>> {
            let run = |arguments: &[&str]| self.run(arguments);
            remove(&run, &run, "default", "demo")
        }

        fn did(&self, word: &str) -> bool {
            self.did.borrow().iter().any(|line| line.contains(word))
        }
    }

    const CRD: (&str, &str) = ("get crd", "customresourcedefinition/c");
    const CLUSTER: (&str, &str) = (
        "get --namespace=default dengineclusters --selector=dengine.io/made-by=demo",
        "denginecluster/demo",
    );
    const OPERATOR: (&str, &str) = (
        "get --namespace=dengine-system deployments --selector=dengine.io/made-by=demo",
        "deployment/dengine-operator",
    );
    const SYSTEM: (&str, &str) = (
        "get namespaces --selector=dengine.io/made-by=demo",
        "namespace/dengine-system",
    );

    #[test]
    fn all_that_the_demo_made_goes() {
        let fake = Fake::new(&[CRD, CLUSTER, OPERATOR, SYSTEM]);
        assert_eq!(fake.remove().unwrap(), Vec::<String>::new());
        for word in [
            "denginebenchmarks --selector=",
            "dengineclusters --selector=",
            "persistentvolumeclaims",
            "uninstall dengine",
            "namespace dengine-system",
            "crd dengineclusters",
            "crd denginebenchmarks",
        ] {
            assert!(fake.did(word), "{word}: {:?}", fake.did);
        }
    }

    #[test]
    fn what_people_made_under_the_same_names_stays() {
        let fake = Fake::new(&[CRD]);
        let stays = fake.remove().unwrap();
        assert!(stays[0].contains("release dengine"), "{stays:?}");
        for word in [
            "uninstall",
            "claims",
            "dengineclusters",
            "namespace d",
            "crd",
        ] {
            assert!(!fake.did(word), "{word}: {:?}", fake.did);
        }
        let others = ("get --namespace=dengine-system deployments", "deployment/x");
        let fake = Fake::new(&[CRD, OPERATOR, SYSTEM, others]);
        let stays = fake.remove().unwrap();
        assert!(stays[0].contains("namespace dengine-system"), "{stays:?}");
        assert!(!fake.did("delete namespace"));
    }

    #[test]
    fn a_crd_goes_only_if_it_is_known_that_nobody_uses_it() {
        let used = ("get dengineclusters.dengine.io --all-namespaces", "dec/x");
        let unknown = ("get denginebenchmarks.dengine.io --all", "!not now");
        let fake = Fake::new(&[CRD, OPERATOR, used]);
        let stays = fake.remove().unwrap();
        assert!(stays.iter().any(|it| it.contains("dengineclusters")));
        assert!(!fake.did("crd dengineclusters"), "{:?}", fake.did);
        assert!(fake.did("crd denginebenchmarks"), "{:?}", fake.did);
        let fake = Fake::new(&[CRD, OPERATOR, unknown]);
        assert!(fake.remove().is_err());
        assert!(!fake.did("crd denginebenchmarks"), "{:?}", fake.did);
        let fake = Fake::new(&[("get crd", "!not now"), OPERATOR]);
        assert!(fake.remove().is_err());
        assert!(fake.did.borrow().is_empty(), "{:?}", fake.did);
    }

    #[test]
    fn only_what_was_not_there_is_marked() {
        let make_with = |fake: &Fake, made: fn() -> Result<()>| {
            let run = |arguments: &[&str]| fake.run(arguments);
            make(&run, "default", "denginecluster", "demo", made)
        };
        let new = Fake::new(&[]);
        make_with(&new, || Ok(())).unwrap();
        assert!(new.did("label --namespace=default denginecluster demo dengine.io/made-by=demo"));
        let there = Fake::new(&[("get --namespace=default denginecluster demo", "dec/demo")]);
        make_with(&there, || Ok(())).unwrap();
        assert!(!there.did("label"));
        // Helm may fail after it made the Deployment.
        let failed = Fake::new(&[]);
        assert!(make_with(&failed, || bail!("too slow")).is_err());
        assert!(failed.did("label"));
    }
}
