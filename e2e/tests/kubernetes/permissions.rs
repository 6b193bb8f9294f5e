//! What the operator may do is what docs/rbac.md says, as the API server sees it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use dengine_e2e::{install, product};
use dengine_local_kubernetes::shell;
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use serde_json::json;

use crate::support::{World, test};

/// What everybody may ask about himself, in every Kubernetes.
const EVERYBODY: [&str; 4] = [
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "selfsubjectreviews",
    "clustertrustbundles",
];

/// Verbs by group and resource.
type Rules = BTreeMap<(String, String), BTreeSet<String>>;

#[tokio::test]
async fn the_operator_may_do_what_the_docs_list_and_nothing_else() {
    test("permissions", async |world| {
        let docs = fs_err::read_to_string(product::workspace()?.join("docs/rbac.md"))?;
        let mut tables = docs.split("|---|---|---|---|").skip(1);
        let everywhere = rows(tables.next().context("the first table")?)?;
        let found = allowed(world, &world.namespace)?;
        ensure!(
            found == everywhere,
            "may {found:#?}, documented {everywhere:#?}"
        );
        let mut at_home = everywhere;
        for (what, verbs) in rows(tables.next().context("the second table")?)? {
            at_home.entry(what).or_default().extend(verbs);
        }
        let found = allowed(world, install::NAMESPACE)?;
        ensure!(found == at_home, "may {found:#?}, documented {at_home:#?}");
        Ok(())
    })
    .await;
}

/// Rows of a table until it ends: group, resource, verbs, why.
fn rows(table: &str) -> Result<Rules> {
    let mut rules = Rules::new();
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [group, resource, verbs, _] = cells[..] else {
            anyhow::bail!("four cells are expected: {row}")
        };
        let group = if group == "(core)" { "" } else { group };
        let resource = resource.split(' ').next().unwrap_or_default();
        let verbs = verbs.split(", ").map(str::to_owned);
        let what = (group.to_owned(), resource.to_owned());
        rules.entry(what).or_default().extend(verbs);
    }
    Ok(rules)
}

/// What the API server lets the operator's ServiceAccount do in a namespace.
fn allowed(world: &World, namespace: &str) -> Result<Rules> {
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    });
    let account = format!(
        "--as=system:serviceaccount:{}:dengine-operator",
        install::NAMESPACE
    );
    let mut kubectl = world.cluster().kubectl();
    kubectl.args(["create", "--filename=-", "--output=json", &account]);
    // Validating on this side takes permissions that the operator does not have.
    kubectl.arg("--validate=false");
    let answer = shell::run_with_input(&mut kubectl, &question.to_string())?;
    let review: SelfSubjectRulesReview = serde_json::from_str(&answer)?;
    let mut rules = Rules::new();
    for rule in review
        .status
        .context("the API server answered")?
        .resource_rules
    {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                if !EVERYBODY.contains(&resource.as_str()) {
                    let what = (group.clone(), resource.clone());
                    rules.entry(what).or_default().extend(rule.verbs.clone());
                }
            }
        }
    }
    Ok(rules)
}
