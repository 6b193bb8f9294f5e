//! What the runbooks tell people to type can be typed.

use std::collections::BTreeSet;

use dengine_crds::DEngineCluster;
use dengine_crds::names::{annotations, labels};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, ResourceQuota};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::monitoring::ALERTS;
use crate::{read, workspace};

/// What is to be filled in.
const PLACEHOLDERS: [&str; 12] = [
    "NAME",
    "N",
    "NODE",
    "VOLUME",
    "IMAGE",
    "REPLICAS",
    "NAMESPACE",
    "QUOTA",
    "RESOURCE",
    "AMOUNT",
    "CPU",
    "MEMORY",
];
/// What `kubectl` does here, with the flags that it takes for that.
const VERBS: [(&str, &[&str]); 9] = [
    ("taint", &[]),
    ("edit", &["--subresource"]),
    (
        "delete",
        &["--force", "--grace-period", "--wait", "--ignore-not-found"],
    ),
    ("get", &["--output", "--selector"]),
    ("patch", &["--type", "--patch"]),
    ("scale", &["--replicas"]),
    ("wait", &["--for", "--selector", "--timeout"]),
    ("logs", &["--previous"]),
    ("describe", &[]),
];
const KINDS: [&str; 12] = [
    "dec",
    "denginecluster",
    "denginebenchmark",
    "node",
    "pod",
    "pvc",
    "pv",
    "lease",
    "statefulset",
    "deployment",
    "resourcequota",
    "networkpolicy",
];
/// What the plugin does.
const OF_PLUGIN: [&str; 4] = ["status", "restart", "bench", "report"];

/// The blocks of this language in a page.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

fn pages() -> Vec<(String, String)> {
    let files = std::fs::read_dir(workspace().join("docs/runbooks")).unwrap();
    files
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The commands of a page: lines of its blocks, and those in the text, each by itself.
fn commands(page: &str) -> Vec<String> {
    let of_blocks = blocks(page, "sh");
    let of_blocks = of_blocks.iter().flat_map(|block| block.lines());
    let of_blocks = of_blocks.filter(|line| !line.is_empty()).map(str::to_owned);
    // What is fenced is every second part, of the page and then of what is not fenced.
    let text: String = page.split("```").step_by(2).collect();
    let quoted = text.split('`').skip(1).step_by(2);
    let typed = quoted.filter(|words| words.starts_with("kubectl "));
    let in_text = typed.map(|words| words.replace('\n', " "));
    of_blocks.chain(in_text).collect()
}

/// As a shell splits a line; quotes are only ever single ones.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().unwrap().push(other),
        }
    }
    assert!(!quoted, "a quote stays open: {line}");
    words
}

/// What follows `kubectl`, without the namespace; flags of one letter as people know them from there.
fn arguments(line: &str) -> Vec<String> {
    let words = words(line);
    assert_eq!(words[0], "kubectl", "{line}");
    let words = &words[1..];
    let words = match words[0].as_str() {
        "-n" | "--namespace" => &words[2..],
        _ => words,
    };
    let mut long = Vec::new();
    for word in words {
        let flag = match word.as_str() {
            "-o" => "--output",
            "-l" => "--selector",
            value if long.last().is_some_and(|it: &String| it.ends_with('=')) => {
                long.last_mut().unwrap().push_str(value);
                continue;
            }
            other => {
                long.push(other.to_owned());
                continue;
            }
        };
        long.push(format!("{flag}="));
    }
    long
}

fn check_command(line: &str) {
    let words = arguments(line);
    if words[0] == "dengine" {
        assert!(OF_PLUGIN.contains(&words[1].as_str()), "{line}");
        return;
    }
    let (_, flags) = VERBS
        .iter()
        .find(|(verb, _)| *verb == words[0])
        .unwrap_or_else(|| panic!("{}: {line}", words[0]));
    for flag in words.iter().filter(|word| word.starts_with("--")) {
        let name = flag.split('=').next().unwrap();
        assert!(flags.contains(&name), "{name}: {line}");
    }
    // A verb alone is spoken of, not typed.
    if words.len() == 1 {
        return;
    }
    let kinds = words[1..].iter().find(|word| !word.starts_with("--"));
    let kinds = kinds.unwrap_or_else(|| panic!("of what: {line}"));
    let kinds = kinds.split('/').next().unwrap();
    for kind in kinds.split(',') {
        let kind = kind.strip_suffix('s').unwrap_or(kind);
        assert!(
            words[0] == "logs" || KINDS.contains(&kind),
            "{kind}: {line}"
        );
    }
    if let Some(patch) = words.iter().find_map(|word| word.strip_prefix("--patch=")) {
        check_patch(kinds, patch);
    }
}

/// The patch sets only fields that there are.
fn check_patch(kind: &str, patch: &str) {
    let mut patch: Value = serde_json::from_str(patch).unwrap();
    match kind {
        "dec" => {
            (patch["apiVersion"], patch["kind"]) =
                ("dengine.io/v1alpha1".into(), "DEngineCluster".into());
            known::<DEngineCluster>(patch);
        }
        "pv" => known::<PersistentVolume>(patch),
        "resourcequota" => known::<ResourceQuota>(patch),
        other => panic!("no patch of {other} is known"),
    }
}

/// Nothing of the object gets lost in its type.
pub(crate) fn known<K: DeserializeOwned + Serialize>(mut object: Value) {
    if object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    let typed = serde_json::to_value(typed).unwrap();
    assert!(contains(&typed, &object), "{object} became {typed}");
}

fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|there| contains(there, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(w, p)| contains(w, p))
        }
        _ => whole == part,
    }
}

#[test]
fn commands_can_be_typed() {
    let mut checked = 0;
    for (page, text) in pages() {
        let languages = text.split("```").skip(1).step_by(2);
        for block in languages {
            let language = block.split('\n').next().unwrap();
            assert!(["sh", "yaml"].contains(&language), "{page}: {block}");
        }
        for line in commands(&text) {
            check_command(&line);
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} commands found");
}

#[test]
fn targets_of_make_are_there() {
    let makefile = read("Makefile");
    let is_there = |target: &str| {
        let head = format!("{target}: ");
        makefile.lines().any(|line| line.starts_with(&head))
    };
    for (page, text) in pages() {
        for named in text.split("`make ").skip(1) {
            let target = named.split(['`', ' ']).next().unwrap();
            assert!(is_there(target), "{page}: make {target}");
        }
    }
}

#[test]
fn what_is_to_be_filled_in_is_known() {
    let is_capital = |word: &&str| {
        word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()) || *word == "N"
    };
    for (page, text) in pages() {
        for block in commands(&text).into_iter().chain(blocks(&text, "yaml")) {
            let words = block.split(|c: char| !c.is_ascii_alphanumeric());
            let found: BTreeSet<&str> = words.filter(is_capital).collect();
            for word in found {
                let ours = PLACEHOLDERS.contains(&word) || ["CLAIM", "ALL", "POD"].contains(&word);
                assert!(ours, "{page}: {word}");
            }
        }
    }
}

/// The pod that recovers a member's folder is one that Kubernetes takes in a restricted namespace, and asks the server for
/// what that can do.
#[test]
fn objects_can_be_made() {
    let page = read("docs/runbooks/DEngineQuorumLost.md");
    let [pod] = &blocks(&page, "yaml")[..] else {
        panic!("one object is expected")
    };
    let pod: Value = serde_yaml::from_str(pod).unwrap();
    known::<Pod>(pod.clone());
    let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let command = read("engine/src/cli/recover.rs");
    for flag in args
        .iter()
        .filter_map(|arg| arg.as_str()?.strip_prefix("--"))
    {
        let field = flag.split('=').next().unwrap().replace('-', "_");
        assert!(command.contains(&format!("{field}:")), "{flag}");
    }
    let members = read("operator/src/cluster/resources/stateful_set.rs");
    for path in ["/var/lib/dengine", "/var/lib/dengine/data"] {
        assert!(members.contains(&format!("\"{path}\"")), "{path}");
    }
}

/// What is kept for a cluster that is gone, only these marks tell.
#[test]
fn volumes_that_are_kept_are_found_by_the_marks_that_they_have() {
    let page = read("docs/runbooks/DEngineClusterDegraded.md");
    let selector = format!(
        "--selector={}=NAME,{}=NAMESPACE",
        labels::KEPT_FOR,
        labels::KEPT_FOR_NAMESPACE
    );
    assert!(page.contains(&selector), "{selector}");
    for annotation in [annotations::REMOVED_MEMBER, annotations::RECLAIM_POLICY] {
        assert!(page.contains(annotation), "{annotation}");
    }
}

/// As one line, in small letters.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Whether a sentence is about volumes as they were earlier.
fn puts_back(sentence: &str) -> bool {
    let words: Vec<&str> = sentence.split(|c: char| !c.is_alphabetic()).collect();
    let puts = (0..words.len()).filter(|place| words[*place].starts_with("put"));
    let mut puts = puts.map(|place| words[place..].iter().take(10));
    puts.any(|mut next| next.any(|word| *word == "back")) || sentence.contains("restor")
}

/// Pages once said the opposite: one volume from a snapshot forgets what its member acknowledged and for whom it voted, and
/// one that is left of a lost majority may hold all that was acknowledged.
#[test]
fn nobody_is_told_to_put_single_volumes_back_or_that_all_data_is_lost() {
    let alerts = ("alerts".to_owned(), read(ALERTS));
    let mut said = 0;
    for (page, text) in pages().into_iter().chain([alerts]) {
        let text = plain(&text);
        for wrong in ["the data is too", "data is lost", "data are lost"] {
            assert!(!text.contains(wrong), "{page}: {wrong}");
        }
        for sentence in text.split(". ").filter(|sentence| puts_back(sentence)) {
            let careful = ["never", "nobody", "all of them"];
            let warns = careful.iter().any(|word| sentence.contains(word));
            assert!(warns, "{page}: {sentence}");
            said += 1;
        }
    }
    assert!(
        said >= 4,
        "the page of a lost quorum says it where it matters"
    );
}
