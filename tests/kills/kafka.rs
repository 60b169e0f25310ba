//! The same kills with outputs in a real Kafka, read back by Kafka's own console consumer.
//!
//! Would catch: records that were in a checkpoint and are published by nobody, because the new run has other workers or takes for
//! sent what the producer of the killed one only had in memory.
//!
//! `SYNCLINE_KAFKA_KILLS` is the number of kills (default 15), `SYNCLINE_SEED` where the dice begin.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::{Dice, OUTPUTS, Plan, Scene, make_data, number};
use crate::kafka::{PATIENCE, Topic, broker, tool};

/// Where a process dies; `None` is at any moment. Early in a run, so that much is left for the next one.
const POINTS: [Option<&str>; 10] = [
    Some("publish.records:2"),
    None,
    Some("publish.done:1"),
    Some("checkpoint.durable:2"),
    Some("checkpoint.appended:3"),
    Some("publish.records:1"),
    Some("start.loaded"),
    None,
    Some("checkpoint.synced:2"),
    Some("publish.done:2"),
];

/// Processes and workers of the runs of a job, one after the other.
const RUNS: [(usize, usize); 7] = [(1, 1), (1, 3), (3, 1), (2, 1), (1, 1), (3, 1), (1, 2)];

/// The outputs of a job: topics of its own.
struct Topics {
    prefix: String,
    topics: [Topic; 3],
}

impl Topics {
    fn new(name: &str) -> Self {
        let first = Topic::new(name, 1);
        let prefix = format!("{}-", first.0); // its own topic, so nobody else has the prefix
        Topics { topics: OUTPUTS.map(|output| Topic::named(&format!("{prefix}{output}"), 2)), prefix }
    }

    fn plan(&self, scene: &Scene, processes: usize, workers: usize) -> Plan {
        let out = format!("kafka://{}", broker());
        Plan { out, prefix: self.prefix.clone(), ..scene.plan(workers, processes) }
    }

    /// Key and value of every record of all topics, and how many records there are.
    fn read(&self) -> (BTreeSet<String>, usize) {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", broker()).create().expect("a client");
        let end = |topic: &str, partition| client.fetch_watermarks(topic, partition, PATIENCE).expect("it answers").1;
        let counts = self.topics.iter().map(|topic| end(&topic.0, 0) + end(&topic.0, 1));
        let count = counts.sum::<i64>().to_string();
        let names = format!("{}.*", self.prefix);
        let mut arguments = vec!["consume", "--include", &names, "--from-beginning", "--max-messages", &count];
        arguments.extend(["--timeout-ms", "30000", "--property", "print.key=true"]);
        let text = tool(&arguments, "");
        assert_eq!(text.lines().count().to_string(), count, "records that the consumer has read");
        (text.lines().map(str::to_owned).collect(), text.lines().count())
    }
}

#[test]
#[ignore = "needs kafka: tests/brokers/kafka/start.sh"]
fn whatever_is_killed_nothing_is_lost_on_the_way_to_a_broker() {
    let folder = tempfile::tempdir().unwrap();
    let data = make_data(folder.path());
    let expected = {
        let (scene, topics) = (Scene::new(&data), Topics::new("undisturbed"));
        scene.complete(&Plan { store: None, ..topics.plan(&scene, 1, 1) });
        let (lines, count) = topics.read();
        assert!(lines.len() > 2_000 && lines.len() == count, "{} of {count}", lines.len());
        lines
    };

    let (wanted, seed) = (number("SYNCLINE_KAFKA_KILLS", 15), number("SYNCLINE_SEED", 1));
    let mut dice = Dice(seed << 1 | 1);
    let (mut kills, mut runs, mut repeated, mut scenes) = (0, 0, 0, 0);
    while kills < wanted {
        let (scene, topics) = (Scene::new(&data), Topics::new("kills"));
        scenes += 1;
        let mut story = vec![]; // how it came, if it fails
        for (run, (processes, workers)) in RUNS.into_iter().enumerate() {
            let last = run + 1 == RUNS.len();
            let point = POINTS[runs % POINTS.len()].filter(|_| !last);
            let victim = dice.below(processes);
            story.push(format!("{processes} x {workers} {victim} {point:?}"));
            let plan = topics.plan(&scene, processes, workers);
            let mut children = scene.start("run", &plan, point.map(|point| (victim, "SYNCLINE_CRASH", point)));
            runs += 1;
            let mut shot = false;
            if point.is_none() && !last {
                std::thread::sleep(Duration::from_millis(20 + dice.below(300) as u64)); // the moment to be killed at
                shot = children[victim].try_wait().unwrap().is_none();
                let _ = children[victim].kill(); // it may have ended meanwhile
            }
            let codes = scene.wait(children);
            kills += u64::from(codes[victim].is_none());
            let complete = codes.iter().all(|code| *code == Some(0));
            assert!(complete || shot || codes[victim].is_none(), "seed {seed}, {story:?}: {codes:?}: {}", scene.said());
            if complete {
                break;
            }
        }
        let (found, count) = topics.read();
        let (lost, made_up) = (expected.difference(&found).count(), found.difference(&expected).count());
        assert!(lost == 0 && made_up == 0, "{lost} lost, {made_up} made up; seed {seed}, {story:?}: {}", scene.said());
        repeated += count - found.len();
    }
    println!("{kills} kills in {runs} runs of {scenes} jobs: none lost, {repeated} outputs repeated");
}
