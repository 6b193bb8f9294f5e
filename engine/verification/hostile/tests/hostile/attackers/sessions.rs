//! Sessions, which the whole cluster keeps.

use dengine_protocol::v1::{
    CloseSessionRequest, KeepAliveSessionRequest, OpenSessionRequest, OpenSessionResponse,
    PutRequest, SessionStamp,
};
use futures::future::BoxFuture;

use super::{Arena, Attacker, crowd, hold};
use crate::link::Link;

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "sessions",
        does: "sessions of an hour, opened without end",
        on: &["dengine.v1.Kv/OpenSession"],
        run: open,
    },
    Attacker {
        name: "session-churn",
        does: "sessions that are opened, filled with large kept answers, kept alive and closed, as \
            fast as it goes",
        on: &[
            "dengine.v1.Kv/OpenSession",
            "dengine.v1.Kv/KeepAliveSession",
            "dengine.v1.Kv/CloseSession",
            "dengine.v1.Kv/Put",
        ],
        run: churn,
    },
    Attacker {
        name: "unknown-sessions",
        does: "keep-alives, ends and writes of sessions that nobody opened",
        on: &[
            "dengine.v1.Kv/KeepAliveSession",
            "dengine.v1.Kv/CloseSession",
            "dengine.v1.Kv/Put",
        ],
        run: unknown,
    },
];

const OPEN: &str = "/dengine.v1.Kv/OpenSession";
const KEEP_ALIVE: &str = "/dengine.v1.Kv/KeepAliveSession";
const CLOSE: &str = "/dengine.v1.Kv/CloseSession";
const PUT: &str = "/dengine.v1.Kv/Put";
const HOUR_MS: u64 = 3_600_000;

fn open(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        let open = OpenSessionRequest { ttl_ms: HOUR_MS };
        hold(&arena, &link, 64, |_| link.told(OPEN, &open)).await
    })
}

fn churn(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, number| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, 16, |_| live(&link, number)).await
    })
}

/// One session from its beginning to its end.
async fn live(link: &Link, number: usize) -> anyhow::Result<String> {
    let open = OpenSessionRequest { ttl_ms: HOUR_MS };
    let opened: OpenSessionResponse = link.answer(OPEN, &open).await?;
    let session_id = opened.session_id;
    for sequence in 1..=32 {
        let mut write = stamped(session_id, sequence);
        write.key = format!("hostile/session/{number}").into();
        write.value = vec![7; 16 << 10].into();
        link.told(PUT, &write).await?;
    }
    link.told(KEEP_ALIVE, &KeepAliveSessionRequest { session_id })
        .await?;
    link.told(CLOSE, &CloseSessionRequest { session_id }).await
}

/// A write whose answer, with the pair as it was before, the session keeps.
fn stamped(session_id: u64, sequence: u64) -> PutRequest {
    PutRequest {
        key: "hostile/stamped".into(),
        prev_kv: true,
        session: Some(SessionStamp {
            session_id,
            sequence,
            acknowledged: 0,
        }),
        ..PutRequest::default()
    }
}

fn unknown(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 8, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        hold(&arena, &link, 64, |number| {
            let link = &link;
            async move {
                let session_id = u64::MAX - number as u64;
                match number % 3 {
                    0 => {
                        let keep = KeepAliveSessionRequest { session_id };
                        link.told(KEEP_ALIVE, &keep).await
                    }
                    1 => link.told(CLOSE, &CloseSessionRequest { session_id }).await,
                    _ => link.told(PUT, &stamped(session_id, u64::MAX)).await,
                }
            }
        })
        .await
    })
}
