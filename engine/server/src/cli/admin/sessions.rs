//! `dengine admin sessions`: which sessions of clients are open, and ending some.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::{Args, Subcommand};
use dengine_client::AdminClient;
use dengine_protocol::v1::{Session, SessionsResponse};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::ask::{Asked, Cluster};
use crate::cli::table::{bytes, table, unknown};
use crate::cli::{EXIT_FAILED, EXIT_OK, say};

/// Sessions that are being ended at a time; they share the log's syncs.
const CLOSED_AT_ONCE: usize = 64;

#[derive(Debug, Subcommand)]
pub(super) enum SessionsCommand {
    /// List them: time to live, the log entry that used each last, what is kept for it, and where
    /// it was opened from.
    ///
    /// The address is known only to the member through which the session was opened, until that
    /// member restarts.
    List,
    /// End sessions of any client. The clients get an error, and open new sessions if they
    /// continue.
    Close(CloseArgs),
}

/// Which ones.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct CloseArgs {
    /// Their ids.
    sessions: Vec<u64>,
    /// All that were opened from this address, as far as that is known.
    #[arg(long, value_name = "ADDRESS")]
    opened_from: Option<String>,
}

/// The open sessions, by what all members say.
struct View {
    sessions: BTreeMap<u64, Session>,
    sessions_max: u64,
}

/// Does it.
pub(super) async fn run(
    cluster: &Cluster,
    command: SessionsCommand,
    as_json: bool,
) -> anyhow::Result<u8> {
    match command {
        SessionsCommand::List => {
            let view = View::of(cluster).await?;
            let shown = match as_json {
                true => format!("{:#}", view.json()),
                false => view.table(),
            };
            say(&shown);
            Ok(EXIT_OK)
        }
        SessionsCommand::Close(which) => close(cluster, which, as_json).await,
    }
}

async fn close(cluster: &Cluster, which: CloseArgs, as_json: bool) -> anyhow::Result<u8> {
    let ids = match which.opened_from {
        None => which.sessions,
        Some(from) => {
            let view = View::of(cluster).await?;
            let opened = view.sessions.into_values();
            let ids: Vec<_> = opened
                .filter(|it| it.opened_from == from)
                .map(|it| it.id)
                .collect();
            if ids.is_empty() {
                bail!(
                    "no open session is known to be opened from {from}; see `dengine admin \
                     sessions list`"
                );
            }
            ids
        }
    };
    // Ending one that is gone changes nothing, so that all of it may be asked for twice.
    let close = |client: AdminClient| {
        let ids = ids.clone();
        async move {
            let close = ids.into_iter().map(|id| {
                let client = client.clone();
                async move { Ok((id, client.close_session(id).await?.closed)) }
            });
            let closing = stream::iter(close).buffered(CLOSED_AT_ONCE);
            closing.try_collect::<Vec<_>>().await
        }
    };
    let answers = cluster.ask("closing sessions", close).await?;
    let closed = answers.into_iter().filter(|(_, closed)| *closed);
    let closed: Vec<_> = closed.map(|(id, _)| id).collect();
    let gone = ids.len() - closed.len();
    if as_json {
        say(&json!({ "closed": closed, "wereGone": gone }).to_string());
    } else {
        say(&format!(
            "{} closed, {gone} were gone already",
            closed.len()
        ));
    }
    Ok(if gone == 0 { EXIT_OK } else { EXIT_FAILED })
}

impl View {
    async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let members = cluster.members_now().await;
        let ask = |client: AdminClient| async move { client.sessions().await };
        let places = cluster.admin_places(members.as_ref()).await;
        let patience = cluster.member_patience();
        let asked = cluster.ask_each(places, patience, ask).await;
        Self::merged(asked)
    }

    /// The list of the member that has come farthest; each knows the addresses of its own clients
    /// only.
    fn merged(asked: Vec<Asked<SessionsResponse>>) -> anyhow::Result<Self> {
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        for Asked {
            answer, address, ..
        } in asked
        {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => errors.push(format!("{address}: {error}")),
            }
        }
        answers.sort_by_key(|it| it.applied_index);
        let Some(newest) = answers.pop() else {
            bail!("no member answered: {}", errors.join("; "));
        };
        let sessions = newest.sessions.into_iter().map(|it| (it.id, it));
        let mut sessions: BTreeMap<_, _> = sessions.collect();
        for other in answers.into_iter().flat_map(|it| it.sessions) {
            if let Some(session) = sessions.get_mut(&other.id)
                && session.opened_from.is_empty()
            {
                session.opened_from = other.opened_from;
            }
        }
        Ok(Self {
            sessions,
            sessions_max: newest.sessions_max,
        })
    }

    fn table(&self) -> String {
        let rows = self.sessions.values().map(|it| {
            let from = match it.opened_from.as_str() {
                "" => unknown(),
                from => from.to_owned(),
            };
            let ttl_s = it.ttl_ms as f64 / 1000.0;
            [
                it.id.to_string(),
                format!("{ttl_s} s"),
                it.last_used_index.to_string(),
                it.replies.to_string(),
                bytes(it.reply_bytes),
                from,
            ]
        });
        let header = ["ID", "TTL", "LAST USED", "ANSWERS", "SIZE", "OPENED FROM"];
        let (open, most) = (self.sessions.len(), self.sessions_max);
        let shown = table(header, rows.collect());
        format!("{open} of at most {most} sessions are open\n{shown}")
    }

    fn json(&self) -> Value {
        let sessions = self.sessions.values().map(|it| {
            json!({
                "id": it.id, "ttlMs": it.ttl_ms, "lastUsedIndex": it.last_used_index,
                "replies": it.replies, "replyBytes": it.reply_bytes, "openedFrom": it.opened_from,
            })
        });
        let sessions: Vec<_> = sessions.collect();
        json!({ "sessions": sessions, "sessionsMax": self.sessions_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(applied_index: u64, sessions: &[(u64, &str)]) -> Asked<SessionsResponse> {
        let session = |(id, from): &(u64, &str)| Session {
            id: *id,
            opened_from: (*from).to_owned(),
            ..Session::default()
        };
        Asked {
            address: "a:1".to_owned(),
            member: None,
            answer: Ok(SessionsResponse {
                applied_index,
                sessions: sessions.iter().map(session).collect(),
                ..SessionsResponse::default()
            }),
        }
    }

    #[test]
    fn the_newest_list_counts_and_each_member_adds_its_own_clients() {
        let asked = vec![
            said(7, &[(3, "10.0.0.3"), (4, "10.0.0.4")]),
            said(9, &[(4, ""), (8, "10.0.0.8")]),
        ];
        let view = View::merged(asked).unwrap();
        let from = view
            .sessions
            .values()
            .map(|it| (it.id, &it.opened_from[..]));
        assert_eq!(from.collect::<Vec<_>>(), [(4, "10.0.0.4"), (8, "10.0.0.8")]);
        assert!(View::merged(Vec::new()).is_err());
    }
}
