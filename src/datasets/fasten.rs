//! Records shaped like those that the plug-ins of the FASTEN project exchange: call graphs of Maven packages, and what a
//! metadata plug-in that read the call graph says about the same package. Each plug-in wraps the record it has read as
//! `input`, so the second topic has the coordinate one level deeper.

use std::fmt::Write as _;

use super::line::Line;
use super::options::Options;
use super::random::{Random, mix};
use super::shape::{Answer, Record, Shape, Topic, Writer};

pub(super) struct Fasten;

impl Shape for Fasten {
    fn name(&self) -> &'static str {
        "fasten"
    }

    fn about(&self) -> &'static str {
        "call graphs and metadata of Maven packages, as the plug-ins of FASTEN write them"
    }

    fn topics(&self) -> &'static [Topic] {
        &[
            Topic {
                name: "fasten.callgraph.out",
                keys: &["input.input.groupId", "input.input.artifactId", "input.input.version"],
                timestamp: "timestamp",
                version: "payload.seq",
            },
            Topic {
                name: "fasten.metadata.out",
                keys: &["input.input.input.groupId", "input.input.input.artifactId", "input.input.input.version"],
                timestamp: "timestamp",
                version: "payload.seq",
            },
        ]
    }

    fn answers(&self) -> &'static [Answer] {
        &[Answer { folder: "expected", topics: &[0, 1] }]
    }

    fn payload(&self) -> usize {
        400
    }

    fn has_ambiguous_keys(&self) -> bool {
        true
    }

    fn writer(&self, options: &Options) -> Box<dyn Writer> {
        let mut random = Random::new(mix(options.seed ^ 0xfa57));
        let graph_bytes = options.payload.saturating_sub(170);
        let dependency_bytes = options.payload.saturating_sub(190);
        let pool = (POOL_BYTES / options.payload.max(1)).clamp(1, POOL);
        Box::new(Packages {
            graphs: (0..pool).map(|_| list(&mut random, graph_bytes, call)).collect(),
            dependencies: (0..pool).map(|_| list(&mut random, dependency_bytes, dependency)).collect(),
            ambiguous: options.ambiguous,
            group: String::new(),
            artifact: String::new(),
            version: String::new(),
            text: String::new(),
        })
    }
}

/// Payload texts are drawn from a pool of so many: lines differ, and writing stays fast.
const POOL: usize = 997;
/// A pool of large texts holds fewer, so many bytes in all.
const POOL_BYTES: usize = 64 << 20;

const WORDS: [&str; 16] = [
    "core", "api", "model", "server", "client", "util", "io", "web", "data", "json", "kafka", "test", "common",
    "spring", "auth", "log",
];

/// Items, with commas between them, of about `bytes` in all.
fn list(random: &mut Random, bytes: usize, item: fn(&mut Random, &mut String)) -> String {
    let (mut list, mut next) = (String::new(), String::new());
    loop {
        next.clear();
        item(random, &mut next);
        if !list.is_empty() && list.len() + next.len() / 2 > bytes {
            return list;
        }
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(&next);
    }
}

fn call(random: &mut Random, text: &mut String) {
    let nodes = random.next();
    // Writing to a String cannot fail.
    let _ = write!(text, "[\"{}\",\"{}\"]", nodes & 0xfff, nodes >> 12 & 0xfff);
}

fn dependency(random: &mut Random, text: &mut String) {
    let (group, artifact, other) = (random.below(4_096), random.pick(&WORDS), random.pick(&WORDS));
    let optional = random.chance(0.5);
    let _ = write!(
        text,
        "{{\"versionConstraints\":[{{\"isUpperHardRequirement\":false,\"isLowerHardRequirement\":false,\
         \"upperBound\":\"{}.{}.{}\"}}],\"groupId\":\"org.{artifact}.g{group}\",\"scope\":\"\",\
         \"artifactId\":\"{other}-{artifact}\",\"optional\":{optional}}}",
        group & 7,
        group >> 3 & 15,
        group & 31,
    );
}

struct Packages {
    graphs: Vec<String>,
    dependencies: Vec<String>,
    ambiguous: f64,
    group: String,
    artifact: String,
    version: String,
    text: String,
}

impl Packages {
    fn name(&mut self, key: u64) {
        // The two keys of an ambiguous pair are the same text but for where the colon of the printed form is a field's end.
        let pair = key & !1;
        let ambiguous = self.ambiguous > 0.0 && Random::new(mix(pair)).chance(self.ambiguous);
        let number = if ambiguous { pair } else { key };
        let hash = mix(number);
        self.group.clear();
        self.artifact.clear();
        self.version.clear();
        let word = |shift: u32| WORDS[(hash >> shift & 15) as usize];
        let _ = write!(self.group, "org.{}.g{}", word(0), (hash >> 8) % 5_003);
        match (ambiguous, key & 1) {
            (true, 0) => {
                let _ = write!(self.artifact, "jar:{}-{number}", word(4));
            }
            (true, _) => {
                self.group.push_str(":jar");
                let _ = write!(self.artifact, "{}-{number}", word(4));
            }
            _ => {
                let _ = write!(self.artifact, "{}-{number}", word(4));
            }
        }
        let _ = write!(self.version, "{}.{}.{}", hash >> 32 & 7, hash >> 36 & 15, hash >> 40 & 31);
    }

    fn coordinate(&self, record: &Record, line: &mut Line<'_>) {
        line.number("date", record.time / 1_000);
        line.key_text("groupId", &self.group);
        line.key_text("artifactId", &self.artifact);
        line.key_text("version", &self.version);
    }
}

impl Writer for Packages {
    fn write(&mut self, record: &Record, line: &mut Line<'_>) {
        self.name(record.key);
        let from_pool = (mix(record.hash ^ record.version) % self.graphs.len() as u64) as usize;
        line.time_number("timestamp", record.time);
        line.open("input");
        line.open("input");
        if record.topic == 0 {
            self.coordinate(record, line);
        } else {
            line.open("input");
            self.coordinate(record, line);
            line.close();
            line.text("plugin_version", "0.1.2");
        }
        line.close();
        line.text("plugin_name", if record.topic == 0 { "POMAnalyzer" } else { "OPAL" });
        line.close();
        line.open("payload");
        line.number("seq", record.version);
        line.text("forge", "mvn");
        if record.topic == 0 {
            self.text.clear();
            let _ = write!(self.text, "{}:{}", self.group, self.artifact);
            line.text("product", &self.text);
            line.text("generator", "OPAL");
            line.text("version", &self.version);
            line.number("nodes", 4_096);
            line.open("graph");
            line.array("internalCalls", &self.graphs[from_pool]);
            line.close();
        } else {
            self.text.clear();
            let _ = write!(
                self.text,
                "http://host/repository/maven-central/{}/{}/{}-sources.jar",
                self.group, self.artifact, self.version
            );
            line.text("repoUrl", "");
            line.text("sourcesUrl", &self.text);
            line.array("dependencies", &self.dependencies[from_pool]);
            line.text("commitTag", "");
        }
        line.close();
        line.text("plugin_name", if record.topic == 0 { "OPAL" } else { "MetadataDB" });
    }
}
