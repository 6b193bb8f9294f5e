//! Commands in the runbooks and docs are possible.

use std::collections::{BTreeMap, BTreeSet};

use clap::Subcommand;
use dengine_commands::KeyCommand;
use dengine_crds::DEngineCluster;
use dengine_crds::names::{annotations, labels};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, ResourceQuota};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::monitoring::ALERTS;
use crate::{read, workspace};

/// Placeholders.
const PLACEHOLDERS: [&str; 13] = [
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
    "ID",
];
/// Subcommands of `kubectl` that are used, with their flags.
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
/// Subcommands of the plugin.
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
    // Blocks of a list are indented.
    let of_blocks = of_blocks.map(str::trim).filter(|line| !line.is_empty());
    let of_blocks = of_blocks.map(str::to_owned);
    // Fenced text is every second part, of the page and then of the rest.
    let text: String = page.split("```").step_by(2).collect();
    let quoted = text.split('`').skip(1).step_by(2);
    let typed = quoted.filter(|words| words.starts_with("kubectl "));
    let in_text = typed.map(|words| words.replace('\n', " "));
    of_blocks.chain(in_text).collect()
}

/// Splits a line as a shell does; there are only single quotes.
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

/// Arguments of `kubectl` without the namespace; flags of one letter are kubectl's own.
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
    if words[0] == "exec" {
        check_exec(&words).unwrap_or_else(|error| panic!("{error}: {line}"));
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
    // A verb alone is mentioned, not typed.
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

/// Arguments of no command.
#[derive(clap::Args)]
struct Nothing {}

/// Pods have one program and no shell. Its subcommand and flags have to exist.
fn check_exec(words: &[String]) -> Result<(), String> {
    let [_, _, separator, program, command @ ..] = words else {
        return Err("too short".to_owned());
    };
    let entry = format!("ENTRYPOINT [\"{program}\"]");
    let is_in_image = read("engine/server/Dockerfile").contains(&entry);
    if separator != "--" || !is_in_image {
        return Err(format!("{program} is nothing that a pod has"));
    }
    match command {
        [admin, command @ ..] if admin == "admin" => check_admin(command),
        _ => {
            let keys = clap::Command::new("dengine").no_binary_name(true);
            let keys = KeyCommand::<Nothing, Nothing>::augment_subcommands(keys);
            let parsed = keys.subcommand_required(true).try_get_matches_from(command);
            parsed.map(drop).map_err(|error| error.to_string())
        }
    }
}

/// The same for `dengine admin`, by its source: that crate cannot be a dependency, it compiles
/// RocksDB.
fn check_admin(command: &[String]) -> Result<(), String> {
    let source = |module: &str| read(&format!("engine/server/src/cli/admin/{module}.rs"));
    let admin = source("mod");
    let (mut flags, _) = takes(body(&admin, "struct AdminArgs"));
    let given = command.iter().filter_map(|word| word.strip_prefix("--"));
    let mut words = command.iter().filter(|word| !word.starts_with("--"));
    let mut next = |of: &str, name: &str| {
        let commands = subcommands(body(of, name));
        let word = words.next().ok_or("no command")?;
        let takes = commands.get(word).ok_or(format!("no command {word}"))?;
        Ok::<_, String>((word.clone(), takes.clone()))
    };
    let (command, mut own) = next(&admin, "enum AdminCommand")?;
    own = match command.as_str() {
        "members" => next(&source("members"), "enum MembersCommand")?.1,
        "sessions" => next(&source("sessions"), "enum SessionsCommand")?.1,
        _ => own,
    };
    flags.extend(own.0);
    for flag in given {
        let name = flag.split('=').next().unwrap();
        if !flags.contains(name) {
            return Err(format!("no flag {name}"));
        }
    }
    let more = words.count();
    let fits = more == own.1;
    fits.then_some(()).ok_or(format!("takes {} words", own.1))
}

/// Flags, and number of positional arguments.
type Takes = (BTreeSet<String>, usize);

/// The text in the braces of this type.
fn body<'a>(source: &'a str, head: &str) -> &'a str {
    let (_, rest) = source.split_once(&format!("{head} {{\n")).unwrap();
    rest.split_once("\n}").unwrap().0
}

/// Name in clap of this Rust name.
fn of_clap(name: &str) -> String {
    let mut dashed = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !dashed.is_empty() {
            dashed.push('-');
        }
        dashed.push(if c == '_' {
            '-'
        } else {
            c.to_ascii_lowercase()
        });
    }
    dashed
}

/// Flags and arguments of a type, or a variant, for clap.
fn takes(body: &str) -> Takes {
    let (mut takes, mut attributes) = (Takes::default(), String::new());
    for line in body.lines().map(str::trim) {
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let field = line.split_once(": ").map(|(name, _)| name);
        let Some(name) = field.filter(is_name) else {
            let is_words = line.starts_with("///");
            attributes.push_str(if is_words { "" } else { line });
            continue;
        };
        if attributes.contains("long") {
            takes.0.insert(of_clap(name));
        } else if !attributes.contains("subcommand") {
            takes.1 += 1;
        }
        attributes.clear();
    }
    takes
}

/// Subcommands of a type for clap.
fn subcommands(body: &str) -> BTreeMap<String, Takes> {
    let mut variants: Vec<(String, String)> = Vec::new();
    for line in body.lines() {
        let begins = line.strip_prefix("    ");
        let begins = begins.filter(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
        if let Some(rest) = begins {
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            variants.push((of_clap(name), String::new()));
        } else if let Some((_, fields)) = variants.last_mut() {
            fields.push_str(line);
            fields.push('\n');
        }
    }
    let variants = variants.into_iter();
    variants
        .map(|(name, fields)| (name, takes(&fields)))
        .collect()
}

/// Images have no shell, and no PATH that leads to the program.
#[test]
fn pages_show_how_to_ask_a_member_in_a_pod() {
    for (page, text) in pages() {
        for line in text.lines().filter(|line| line.contains("dengine admin")) {
            let asked = line.matches("dengine admin").count();
            let in_pod = line.matches("-- /dengine admin").count();
            assert_eq!(asked, in_pod, "{page}: {line}");
        }
    }
    let mut checked = 0;
    for page in ["README.md", "docs/upgrades.md", "docs/network-policy.md"] {
        let commands = commands(&read(page)).into_iter();
        for line in commands.filter(|line| line.starts_with("kubectl exec ")) {
            check_command(&line);
            checked += 1;
        }
    }
    assert!(checked >= 3, "only {checked} commands found");
}

#[test]
fn impossible_commands_in_pods_are_found() {
    let check = |line: &str| check_exec(&arguments(line));
    for line in [
        "kubectl exec NAME-N -- /dengine admin status",
        "kubectl exec NAME-N -- /dengine admin transfer ID",
        "kubectl exec NAME-N -- /dengine admin members list --json",
        "kubectl exec NAME-N -- /dengine admin members add-learner --endpoint=HOST --promote",
        "kubectl exec NAME-N -- /dengine admin --endpoints=HOST --timeout=5s members remove ID",
        "kubectl exec NAME-N -- /dengine put color blue",
        "kubectl exec NAME-N -- /dengine get color --consistency=eventual",
    ] {
        assert_eq!(check(line), Ok(()), "{line}");
    }
    for line in [
        "kubectl exec NAME-N -- dengine admin status",
        "kubectl exec NAME-N -- /bin/dengine admin status",
        "kubectl exec NAME-N /dengine admin status --json",
        "kubectl exec NAME-N -- /dengine admin",
        "kubectl exec NAME-N -- /dengine admin state",
        "kubectl exec NAME-N -- /dengine admin transfer",
        "kubectl exec NAME-N -- /dengine admin status ID",
        "kubectl exec NAME-N -- /dengine admin status --promote",
        "kubectl exec NAME-N -- /dengine admin members",
        "kubectl exec NAME-N -- /dengine admin members show",
        "kubectl exec NAME-N -- /dengine",
        "kubectl exec NAME-N -- /dengine store color blue",
        "kubectl exec NAME-N -- /dengine get",
        "kubectl exec NAME-N -- /dengine get color --quickly",
    ] {
        assert!(check(line).is_err(), "{line}");
    }
}

/// The patch sets only fields that exist.
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

/// The object round-trips through its type.
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
fn commands_are_possible() {
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
fn targets_of_make_exist() {
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
fn placeholders_are_known() {
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

/// The pod that recovers a member's data directory is accepted in a restricted namespace, and its
/// command exists.
#[test]
fn objects_are_valid() {
    let page = read("docs/runbooks/DEngineQuorumLost.md");
    let [pod] = &blocks(&page, "yaml")[..] else {
        panic!("one object is expected")
    };
    let pod: Value = serde_saphyr::from_str(pod).unwrap();
    known::<Pod>(pod.clone());
    let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let command = read("engine/server/src/cli/recover.rs");
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

/// Volumes that are kept for a deleted cluster have only these labels.
#[test]
fn pages_find_kept_volumes_by_their_labels() {
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

/// As one line, in lower case.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Whether a sentence is about restored volumes.
fn puts_back(sentence: &str) -> bool {
    let words: Vec<&str> = sentence.split(|c: char| !c.is_alphabetic()).collect();
    let puts = (0..words.len()).filter(|place| words[*place].starts_with("put"));
    let mut puts = puts.map(|place| words[place..].iter().take(10));
    puts.any(|mut next| next.any(|word| *word == "back")) || sentence.contains("restor")
}

/// Pages once said the opposite: a volume from a snapshot lacks later acknowledged writes and
/// votes, while the last volume of a lost majority may hold all acknowledged writes.
#[test]
fn no_page_says_to_restore_single_volumes() {
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
