//! What an application does with keys, against members that run:
//! `cargo run --release -p dengine-client --example keys -- 127.0.0.1:4101,127.0.0.1:4102`
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::env;

use dengine_client::{
    Batch, Client, Compare, Consistency, Expected, KeyRange, Operation, RangeQuery, SessionOptions,
    WatchQuery, WatchUpdate,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoints = env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:4100".to_owned());
    // Any of the members will do: the client finds the leader, and goes on with the others if one
    // fails.
    let client = Client::connect(endpoints.split(',')).await?;

    let put = client.put("color", "blue").await?;
    println!("color is blue since revision {}", put.header.revision);

    // Changes the value only if nobody else has changed it since.
    let unchanged = Expected::ModRevision(put.header.revision);
    let swap = client.compare_and_swap("color", unchanged, "green").await?;
    println!("swapped: {}", swap.succeeded);

    // Within a session a write is sent as often as it takes, and takes effect once.
    let session = client.with_session(SessionOptions::default()).await?;
    let both = Batch::new()
        .when(Compare::exists("color"))
        .then(Operation::put("color/hue", "120"))
        .then(Operation::put("color/name", "green"));
    println!("both written: {}", session.batch(both).await?.succeeded);

    // Whatever was acknowledged before shows in it; other consistencies are cheaper and less fresh.
    let query = RangeQuery::new(KeyRange::prefix("color"));
    let found = client
        .range(query.consistency(Consistency::Linearizable))
        .await?;
    for kv in found.kvs {
        let (key, value) = (
            String::from_utf8_lossy(&kv.key),
            String::from_utf8_lossy(&kv.value),
        );
        println!("{key} = {value}");
    }

    // Everything since the first write above, and what follows: it goes on when a member fails.
    let query = WatchQuery::new(KeyRange::prefix("color"));
    let mut watch = client
        .watch(query.from_revision(put.header.revision))
        .await?;
    let mut seen = 0;
    while seen < 4 {
        if let WatchUpdate::Events { events, .. } = watch.next().await? {
            seen += events.len();
            println!("{seen} changes seen");
        }
    }
    Ok(())
}
