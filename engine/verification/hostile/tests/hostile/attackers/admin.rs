//! What only people and the operator should ask. What would be done is asked for in a way that must
//! be refused, for whoever may come to the admin port may also remove a member.

use anyhow::Result;
use bytes::Bytes;
use dengine_protocol::v1::{
    AddLearnerRequest, BootstrapRequest, CloseSessionRequest, HashRequest, JoinRequest,
    MembersRequest, PromoteRequest, RemoveRequest, SessionsRequest, SnapshotRequest, StatusRequest,
    TransferLeaderRequest,
};
use futures::future::BoxFuture;
use prost::Message;
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::{Arena, Attacker, crowd, hold};
use crate::link::{Link, framed, read_some};

pub(super) const ATTACKERS: &[Attacker] = &[
    Attacker {
        name: "hashes",
        does: "hashes of everything, 512 at a time on the admin port, and as many on that of \
            clients",
        on: &["listen-admin", "dengine.v1.Admin/Hash"],
        run: hashes,
    },
    Attacker {
        name: "snapshots",
        does: "snapshots, 64 at a time on the admin port, and as many on that of clients",
        on: &["listen-admin", "dengine.v1.Admin/Snapshot"],
        run: snapshots,
    },
    Attacker {
        name: "questions",
        does: "the state of the member, of the cluster and of all sessions, 512 at a time on both \
            ports",
        on: &[
            "dengine.v1.Admin/Status",
            "dengine.v1.Admin/Members",
            "dengine.v1.Admin/Sessions",
        ],
        run: questions,
    },
    Attacker {
        name: "orders",
        does: "changes of the cluster that make no sense, 256 at a time on both ports",
        on: &[
            "dengine.v1.Admin/Bootstrap",
            "dengine.v1.Admin/Join",
            "dengine.v1.Admin/AddLearner",
            "dengine.v1.Admin/Promote",
            "dengine.v1.Admin/Remove",
            "dengine.v1.Admin/TransferLeader",
            "dengine.v1.Admin/CloseSession",
        ],
        run: orders,
    },
    Attacker {
        name: "probes",
        does: "health over gRPC, streams of it that stay, and reflection, on every port that has \
            them, half of it unread",
        on: &[
            "grpc.health.v1.Health/Check",
            "grpc.health.v1.Health/Watch",
            "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ],
        run: probes,
    },
    Attacker {
        name: "health-streams",
        does: "128,000 streams of health that stay, over 128 connections",
        on: &["grpc.health.v1.Health/Watch"],
        run: health_streams,
    },
];

/// An order: the path and its request.
type Order = (&'static str, Vec<u8>);

/// So many of the orders at once, on both ports.
fn give(
    arena: Arena,
    connections: usize,
    calls: usize,
    orders: Vec<Order>,
) -> BoxFuture<'static, ()> {
    let orders = std::sync::Arc::new(orders);
    crowd(arena, connections, move |arena, number| {
        let orders = std::sync::Arc::clone(&orders);
        async move {
            let doors = [arena.doors.admin, arena.doors.client];
            let link = Link::open(doors[number % 2]).await?;
            hold(&arena, &link, calls, |n| {
                let (path, request) = &orders[n % orders.len()];
                let link = &link;
                async move { link.ask_encoded(path, request).await?.told().await }
            })
            .await
        }
    })
}

fn order(path: &'static str, request: &impl Message) -> Order {
    (path, request.encode_to_vec())
}

fn hashes(arena: Arena) -> BoxFuture<'static, ()> {
    let hash = order("/dengine.v1.Admin/Hash", &HashRequest {});
    give(arena, 16, 64, vec![hash])
}

fn snapshots(arena: Arena) -> BoxFuture<'static, ()> {
    let snapshot = order("/dengine.v1.Admin/Snapshot", &SnapshotRequest {});
    give(arena, 16, 8, vec![snapshot])
}

fn questions(arena: Arena) -> BoxFuture<'static, ()> {
    let status = order("/dengine.v1.Admin/Status", &StatusRequest {});
    let members = order("/dengine.v1.Admin/Members", &MembersRequest {});
    let sessions = order("/dengine.v1.Admin/Sessions", &SessionsRequest {});
    give(arena, 16, 64, vec![status, members, sessions])
}

fn orders(arena: Arena) -> BoxFuture<'static, ()> {
    let nobody = u64::MAX;
    let bootstrap = BootstrapRequest {
        cluster_id: arena.lead.cluster ^ 1,
        folder_id: arena.lead.folder.clone(),
        first_revision: u64::MAX,
    };
    let join = JoinRequest {
        cluster_id: arena.lead.cluster ^ 1,
        member_id: nobody,
        folder_id: arena.lead.folder.clone(),
    };
    // Without a name.
    let add = AddLearnerRequest::default();
    let orders = vec![
        order("/dengine.v1.Admin/Bootstrap", &bootstrap),
        order("/dengine.v1.Admin/Join", &join),
        order("/dengine.v1.Admin/AddLearner", &add),
        order(
            "/dengine.v1.Admin/Promote",
            &PromoteRequest { member_id: nobody },
        ),
        order(
            "/dengine.v1.Admin/Remove",
            &RemoveRequest { member_id: nobody },
        ),
        order(
            "/dengine.v1.Admin/TransferLeader",
            &TransferLeaderRequest { member_id: nobody },
        ),
        order(
            "/dengine.v1.Admin/CloseSession",
            &CloseSessionRequest { session_id: nobody },
        ),
    ];
    give(arena, 8, 64, orders)
}

fn probes(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 48, |arena, number| async move {
        let doors = [arena.doors.monitor, arena.doors.client, arena.doors.admin];
        let door = doors[number % doors.len()];
        let window = if number % 2 == 0 { 1 << 20 } else { 1 };
        let link = Link::with_window(door, window).await?;
        hold(&arena, &link, 64, |n| {
            let link = &link;
            async move {
                let ready = HealthCheckRequest {
                    service: dengine_protocol::health::READY.to_owned(),
                };
                match n % 3 {
                    0 => link.told("/grpc.health.v1.Health/Check", &ready).await,
                    1 => stays(link, "/grpc.health.v1.Health/Watch", framed(&ready)).await,
                    _ => reflect(link).await,
                }
            }
        })
        .await
    })
}

fn health_streams(arena: Arena) -> BoxFuture<'static, ()> {
    crowd(arena, 128, |arena, _| async move {
        let link = Link::open(arena.doors.client).await?;
        let ready = framed(&HealthCheckRequest {
            service: dengine_protocol::health::READY.to_owned(),
        });
        hold(&arena, &link, 1_000, |_| {
            stays(&link, "/grpc.health.v1.Health/Watch", ready.clone())
        })
        .await
    })
}

/// Opens a stream, and reads whatever comes.
async fn stays(link: &Link, path: &str, first: Bytes) -> Result<String> {
    let mut call = link.begin(path).await?;
    call.body.send_data(first, false)?;
    let (_requests, mut answers) = call.answers().await?;
    while read_some(&mut answers).await? > 0 {}
    Ok("the end of a stream".to_owned())
}

/// Asks for all types a hundred times, and reads some of the answers.
async fn reflect(link: &Link) -> Result<String> {
    let ask = framed(&ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(
            "dengine.v1.Kv".to_owned(),
        )),
    });
    let mut call = link
        .begin("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        .await?;
    for _ in 0..100 {
        call.body.send_data(ask.clone(), false)?;
    }
    let (_requests, mut answers) = call.answers().await?;
    for _ in 0..10 {
        read_some(&mut answers).await?;
    }
    Ok("reflection".to_owned())
}
