//! `dengine txn`: comparisons, and what is done by what they come to, all of it at once.

use std::cmp::Ordering;
use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use dengine_client::{Batch, BatchResult, Compare, KeyRange, Operation, OperationResult};
use serde_json::{Value, json};

use crate::end::{EXIT_OK, UsageError, after_write, print};
use crate::show::{self, Output};
use crate::{Asking, Cluster, arguments};

/// What `dengine txn` takes.
#[derive(Debug, Args)]
pub struct TxnArgs {
    /// A comparison; all must hold. `exists KEY`, `absent KEY`, `value KEY = VALUE` (or `!=`, `<`,
    /// `>`; the key has to exist), `version KEY = N`, `created KEY = REVISION`,
    /// `modified KEY = REVISION` (or `<`, `>`).
    #[arg(long = "if", value_name = "COMPARISON")]
    compares: Vec<String>,

    /// Done if the comparisons hold. `put KEY VALUE`, `put KEY VALUE TTL`, `get KEY`,
    /// `get-prefix PREFIX`, `del KEY`, `del-prefix PREFIX`.
    #[arg(long, value_name = "OPERATION")]
    then: Vec<String>,

    /// Done if they do not hold.
    #[arg(long = "else", value_name = "OPERATION")]
    otherwise: Vec<String>,
}

impl TxnArgs {
    fn batch(&self) -> anyhow::Result<Batch> {
        let flags = [
            ("if", &self.compares),
            ("then", &self.then),
            ("else", &self.otherwise),
        ];
        if flags.iter().all(|(_, lines)| lines.is_empty()) {
            let script = arguments::read_all(io::stdin())
                .context("the transaction can't be read from standard input")?;
            let script = String::from_utf8(script)
                .map_err(|_| UsageError("the transaction is not valid UTF-8".to_owned()))?;
            return parse(&script);
        }
        let lines = flags
            .into_iter()
            .flat_map(|(word, lines)| lines.iter().map(move |line| (word, line.as_str())));
        all(lines.map(|(word, line)| Line {
            number: None,
            word,
            rest: line,
        }))
    }
}

pub(crate) async fn txn(
    args: TxnArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let batch = args.batch()?;
    let client = asking.open_to_write(cluster).await?;
    let done = arguments::written(client.batch(batch).await)?;
    let shown = print(&match asking.output {
        Output::Json => json(&done).to_string(),
        Output::Text => text(&done),
    });
    after_write(shown, done.header.revision)?;
    Ok(EXIT_OK)
}

/// A line each: `if COMPARISON`, `then OPERATION` or `else OPERATION`. Empty lines, and those that
/// begin with `#`, say nothing.
fn parse(script: &str) -> anyhow::Result<Batch> {
    let lines = script.lines().map(str::trim_ascii_start).enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty() && !line.starts_with('#'));
    all(lines.map(|(at, line)| {
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        Line {
            number: Some(at + 1),
            word,
            rest,
        }
    }))
}

/// Of a transaction.
struct Line<'a> {
    /// In the script that it is from, from 1.
    number: Option<usize>,
    word: &'a str,
    rest: &'a str,
}

fn all<'a>(lines: impl Iterator<Item = Line<'a>>) -> anyhow::Result<Batch> {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        bail!(UsageError("the transaction is empty".to_owned()));
    }
    let understood = lines.try_fold(Batch::new(), |batch, Line { number, word, rest }| {
        let shown = show::short(format!("{word} {rest}").trim_ascii_end().as_bytes());
        let place = number.map_or_else(String::new, |number| format!("line {number}: "));
        add(batch, (word, rest)).context(format!("{place}{shown}"))
    });
    understood.map_err(|error| UsageError(format!("{error:#}")).into())
}

fn add(batch: Batch, (word, line): (&str, &str)) -> anyhow::Result<Batch> {
    let words = shlex::split(line).context("a quote is not closed")?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match word {
        "if" => Ok(batch.when(compare(&words)?)),
        "then" => Ok(batch.then(operation(&words)?)),
        "else" => Ok(batch.otherwise(operation(&words)?)),
        _ => bail!("a line begins with if, then or else"),
    }
}

fn compare(words: &[&str]) -> anyhow::Result<Compare> {
    let key = |key: &&str| (*key).to_owned();
    Ok(match words {
        ["exists", it] => Compare::exists(key(it)),
        ["absent", it] => Compare::absent(key(it)),
        ["value", it, "!=", value] => Compare::value_is_not(key(it), key(value)),
        ["value", it, relation, value] => Compare::value(key(it), ordering(relation)?, key(value)),
        ["version", it, relation, number] => {
            Compare::version(key(it), ordering(relation)?, revision(number)?)
        }
        ["created", it, relation, number] => {
            Compare::create_revision(key(it), ordering(relation)?, revision(number)?)
        }
        ["modified", it, relation, number] => {
            Compare::mod_revision(key(it), ordering(relation)?, revision(number)?)
        }
        _ => bail!(
            "not a comparison: use exists KEY, absent KEY, value KEY = VALUE, version KEY = N, \
             created KEY = REVISION or modified KEY = REVISION"
        ),
    })
}

fn operation(words: &[&str]) -> anyhow::Result<Operation> {
    let own = |word: &&str| (*word).to_owned();
    Ok(match words {
        ["put", key, value] => Operation::put(own(key), own(value)),
        ["put", key, value, ttl] => Operation::put_with_ttl(own(key), own(value), duration(ttl)?),
        ["get", key] => Operation::get(own(key)),
        ["get-prefix", prefix] => Operation::range(KeyRange::prefix(own(prefix)), 0),
        ["del", key] => Operation::delete(own(key)),
        ["del-prefix", prefix] => Operation::delete_range(KeyRange::prefix(own(prefix))),
        _ => bail!(
            "not an operation: use put KEY VALUE [TTL], get KEY, get-prefix PREFIX, del KEY or \
             del-prefix PREFIX"
        ),
    })
}

fn ordering(relation: &str) -> anyhow::Result<Ordering> {
    match relation {
        "=" | "==" => Ok(Ordering::Equal),
        "<" => Ok(Ordering::Less),
        ">" => Ok(Ordering::Greater),
        _ => bail!("{relation:?}: use =, < or > (and !=, of a value)"),
    }
}

fn revision(number: &str) -> anyhow::Result<u64> {
    number
        .parse()
        .with_context(|| format!("{number:?} is not a number"))
}

fn duration(ttl: &str) -> anyhow::Result<Duration> {
    arguments::ttl(ttl).map_err(|error| anyhow::anyhow!("{ttl:?}: {error}"))
}

fn text(done: &BatchResult) -> String {
    let held = if done.succeeded {
        "held"
    } else {
        "did not hold"
    };
    let revision = done.header.revision;
    let mut lines = vec![format!("the comparisons {held}, revision {revision}")];
    for result in &done.results {
        match result {
            OperationResult::Put { .. } => lines.push("put".to_owned()),
            OperationResult::Delete { deleted, .. } => lines.push(format!("{deleted} deleted")),
            OperationResult::Get { kvs, more, .. } => {
                lines.push(match kvs.is_empty() {
                    true => "no key".to_owned(),
                    false => show::pairs(kvs, false),
                });
                if *more {
                    lines.push("and more: read them with `dengine range`".to_owned());
                }
            }
        }
    }
    lines.join("\n")
}

fn json(done: &BatchResult) -> Value {
    let results = done.results.iter().map(|result| match result {
        OperationResult::Put { .. } => json!({ "put": true }),
        OperationResult::Delete { deleted, .. } => json!({ "deleted": deleted }),
        OperationResult::Get { kvs, more, .. } => {
            let kvs: Value = kvs.iter().map(show::pair).collect();
            json!({ "kvs": kvs, "more": more })
        }
    });
    let results: Vec<_> = results.collect();
    json!({
        "succeeded": done.succeeded, "revision": done.header.revision, "results": results,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_what_the_flags_are() {
        let script = "# move it\nif exists from\nif absent to\n\nthen del from\n\
            then put to 'a value' 10m\nelse get to\n";
        let moved = Batch::new()
            .when(Compare::exists("from"))
            .when(Compare::absent("to"))
            .then(Operation::delete("from"))
            .then(Operation::put_with_ttl(
                "to",
                "a value",
                Duration::from_secs(600),
            ))
            .otherwise(Operation::get("to"));
        assert_eq!(parse(script).unwrap(), moved);
    }

    /// Only what separates words goes.
    #[test]
    fn a_value_keeps_its_blanks() {
        let script = "  then put a b\u{a0}\r\n\tthen put c d\\ ";
        let kept = Batch::new()
            .then(Operation::put("a", "b\u{a0}"))
            .then(Operation::put("c", "d "));
        assert_eq!(parse(script).unwrap(), kept);
    }

    #[test]
    fn comparisons_are_of_five_kinds() {
        let compare = |line: &str| compare(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(compare("value a != b"), Compare::value_is_not("a", "b"));
        assert_eq!(
            compare("value a < b"),
            Compare::value("a", Ordering::Less, "b")
        );
        assert_eq!(
            compare("version a = 3"),
            Compare::version("a", Ordering::Equal, 3)
        );
        let created = Compare::create_revision("a", Ordering::Greater, 3);
        assert_eq!(compare("created a > 3"), created);
        let modified = Compare::mod_revision("a", Ordering::Less, 3);
        assert_eq!(compare("modified a < 3"), modified);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (script, part) in [
            ("when exists a", "if, then or else"),
            ("if a = b", "not a comparison"),
            ("if version a ~ 3", "use =, < or >"),
            ("if version a = b", "not a number"),
            ("then put a", "not an operation"),
            ("then put a b soon", "as in 90s"),
            ("then put a b 0s", "at once"),
            ("then put a 'b", "a quote is not closed"),
            (
                "if exists a\n\nthenput a b\n",
                "line 3: thenput a b: a line",
            ),
            ("# nothing\n\n", "is empty"),
        ] {
            let error = format!("{:#}", parse(script).unwrap_err());
            assert!(error.contains(part), "{script}: {error}");
        }
    }
}
