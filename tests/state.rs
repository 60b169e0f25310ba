//! `syncline state` on folders that the binary's own job has made.
//!
//! Would catch: a look that changes the folder or takes its lock, damage that is not seen or not named, a torn tail that frightens,
//! a key that is told from another by its printed form, records that are shown otherwise than they were read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

const START: u64 = 1_600_000_000_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// Side one: `a:1` joins, `c:3` is delayed as soon as the clock moves on, two keys that are printed as `b:2` wait.
const ONE: [&str; 4] = [
    r#"{"k":"a","n":1,"t":1600000000000}"#,
    r#"{"k":"c","n":3,"t":1600000001000, "x":1.0000000000000000000001}"#,
    r#"{"k":"b","n":2,"t":1600000100000}"#,
    r#"{"k":"b","n":"2","t":1600000100000}"#,
];
/// Side two.
const TWO: [&str; 2] = [r#"{"k":"a","n":1.0,"t":1600000002000}"#, r#"{"k":"z","n":9,"t":1600000100000}"#];

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        for (name, lines) in [("one", &ONE[..]), ("two", &TWO[..])] {
            fs::write(scene.path(&format!("{name}.jsonl")), lines.join("\n") + "\n").unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn job(&self) -> PathBuf {
        self.path("state/one_two_sync")
    }

    fn sync(&self, more: &str) -> Child {
        let line = format!(
            "sync -b file:{0} --topic_one one --topic_two two --topic_one_keys k,n --topic_two_keys k,n -o sync \
             --window_time 10 --timestamp_field t --clock event --max_disorder 1s --enable_delay true --delay_topic delay \
             --output_brokers file:{0}/out --backendFolder {0}/state --at_end keep {more}",
            self.dir.path().display()
        );
        let said = fs::File::create(self.path("said")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncline"));
        command.args(line.split_whitespace()).stdout(Stdio::null()).stderr(said).spawn().unwrap()
    }

    /// A run to the end of the files.
    fn run(&self) {
        let status = self.sync("--until end").wait().unwrap();
        assert!(status.success(), "{}", fs::read_to_string(self.path("said")).unwrap());
    }

    /// Every file below the folder of checkpoints, with what it holds and when it was changed.
    fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let (mut folders, mut files) = (vec![self.path("state")], BTreeMap::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let changed = fs::metadata(&path).unwrap().modified().unwrap();
                    files.insert(path.clone(), (fs::read(&path).unwrap(), changed));
                }
            }
        }
        files
    }

    /// The segments, by name.
    fn segments(&self) -> Vec<PathBuf> {
        let is_segment = |path: &PathBuf| path.parent().unwrap().ends_with("segments");
        self.files().into_keys().filter(is_segment).collect()
    }
}

fn state(args: &[&str]) -> (Option<i32>, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_syncline")).arg("state").args(args).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What a command prints that must do its work.
fn printed(action: &str, folder: &Path, more: &[&str]) -> String {
    let folder = folder.to_str().unwrap();
    let (code, out, err) = state(&[&[action, folder][..], more].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{action}: {out}");
    out
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn what_a_job_has_kept_is_said_and_nothing_is_touched() {
    let scene = Scene::new();
    scene.run();
    let before = scene.files();

    let ls = printed("ls", &scene.path("state"), &[]);
    has(&ls, &["job      fasten.one.two.sync\n", "window_time", "run      1\n", "not alive", "workers  1, at most 1"]);
    let end = |lines: &[&str]| lines.iter().map(|line| line.len() + 1).sum::<usize>();
    has(&ls, &[&format!("one[0]  side 0 one, next offset {}, ", end(&ONE))]);
    has(&ls, &[&format!("two[0]  side 1 two, next offset {}, ", end(&TWO))]);
    has(&ls, &["log of worker 0 in run 1, open", "  keys  5 items, "]);
    assert_eq!(ls, printed("ls", &scene.job(), &[]));

    let verify = printed("verify", &scene.job(), &[]);
    assert!(verify.starts_with("whole: 1 segments, ") && verify.lines().count() == 1, "{verify}");

    let show = printed("show", &scene.job(), &["--key", "b:2"]);
    has(&show, &[r#"key b:2  (text "b", number 2)"#, r#"key b:2  (text "b", text "2")"#, ONE[2], ONE[3]]);
    has(&show, &[&format!("waiting  side 0 one, split one[0], offset {}\n", end(&ONE[..2]))]);
    has(
        &show,
        &["timestamp         2020-09-13T12:28:20Z", "deadline          2020-09-13T12:28:30Z", "clock at arrival  "],
    );
    has(
        &printed("show", &scene.job(), &["--key", "a:1"]),
        &["finished joined; ", "side 1 two: split two[0], offset 0"],
    );
    has(&printed("show", &scene.job(), &["--key", "c:3"]), &["waiting  side 0 one", ONE[1]]);
    let (code, out, err) = state(&["show", scene.job().to_str().unwrap(), "--key", "nobody"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    has(&err, &["nothing is known of key \"nobody\""]);

    let export = printed("export", &scene.job(), &[]);
    assert_eq!(export.lines().count(), 5, "{export}");
    has(&export, &["1.0000000000000000000001"]);
    let items: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |item: &str| items.iter().filter(|value| value["item"] == item).collect::<Vec<_>>();
    let find = |offset: usize| {
        let waits = |value: &&&Value| value["side"] == 0 && value["offset"] == offset;
        of("waiting").iter().find(waits).unwrap_or_else(|| panic!("{offset} in {export}")).to_owned().clone()
    };
    let waits = find(end(&ONE[..2]));
    assert_eq!((&waits["key"], &waits["key_fields"]), (&"b:2".into(), &serde_json::json!(["b", 2])));
    assert_eq!(waits["payload"], serde_json::from_str::<Value>(ONE[2]).unwrap());
    assert_eq!((&waits["timestamp"], &waits["deadline"]), (&(START + 100_000).into(), &(START + 110_000).into()));
    assert_eq!((of("waiting").len(), of("held").len(), of("finished").len()), (4, 0, 1));
    let joined = of("finished")[0];
    assert_eq!((&joined["key"], &joined["outcome"], &joined["dropped"]), (&"a:1".into(), &"joined".into(), &0.into()));
    assert_eq!(joined["positions"][0]["split_name"], "one[0]");
    assert_eq!(printed("export", &scene.job(), &["--collection", "keys"]).lines().count(), 5);
    let (code, _, err) = state(&["export", scene.job().to_str().unwrap(), "--collection", "kyes"]);
    assert_eq!(code, Some(1));
    has(&err, &["collection \"kyes\" has no items: did you mean keys?"]);

    assert!(scene.files() == before, "a look has changed the folder");
}

#[test]
fn damage_is_named_and_a_torn_tail_is_harmless() {
    let scene = Scene::new();
    scene.run();
    let first = scene.segments().remove(0);
    let whole = fs::read(&first).unwrap();
    fs::write(&first, [&whole[..], b"torn"].concat()).unwrap();
    let verify = printed("verify", &scene.job(), &[]);
    has(
        &verify,
        &["harmless: ", &format!("{first:?}, byte {}: ", whole.len()), "the next start cuts it off", "whole: "],
    );
    has(&printed("ls", &scene.job(), &[]), &["  torn: "]);

    // The next run says where the first one's log ends.
    scene.run();
    has(&printed("verify", &scene.job(), &[]), &["whole: 2 segments, "]);
    for (at, said) in [(3, "is damaged at byte 0: "), (20, "is damaged at byte 20: "), (80, "is damaged at byte 56: ")]
    {
        let mut bytes = fs::read(&first).unwrap();
        bytes[at] ^= 1;
        fs::write(&first, &bytes).unwrap();
        let (code, out, err) = state(&["verify", scene.job().to_str().unwrap()]);
        assert_eq!(code, Some(1), "{out}{err}");
        let problems: Vec<_> = out.lines().filter(|line| line.starts_with("damaged: ")).collect();
        assert_eq!(problems.len(), 1, "{out}");
        has(
            problems[0],
            &[&format!("{first:?} {said}"), "bring the folder back from a copy, or give the job a new one"],
        );
        has(&err, &["1 problem in folder "]);
        bytes[at] ^= 1;
        fs::write(&first, &bytes).unwrap();
    }
    let second = scene.segments().remove(1);
    fs::remove_file(&second).unwrap();
    let mut bytes = fs::read(&first).unwrap();
    bytes[80] ^= 1;
    fs::write(&first, bytes).unwrap();
    let (code, out, _) = state(&["verify", scene.job().to_str().unwrap()]);
    assert_eq!(code, Some(1));
    has(&out, &["is damaged at byte 56", &format!("{second:?} is missing though the newest manifest lists it")]);
    assert_eq!(state(&["ls", scene.job().to_str().unwrap()]).0, Some(1));

    let manifest = scene.files().into_keys().rfind(|path| path.parent().unwrap().ends_with("manifests")).unwrap();
    fs::write(&manifest, "syncline manifest 1\n{").unwrap();
    let (code, out, _) = state(&["verify", scene.job().to_str().unwrap()]);
    assert_eq!(code, Some(1));
    has(&out, &[&format!("damaged: {manifest:?} is damaged at byte ")]);
}

#[test]
fn a_running_job_is_looked_at_and_not_disturbed() {
    let scene = Scene::new();
    let mut job = scene.sync("");
    let folder = scene.job();
    let wait_for = |action: &[&str], part: &str| {
        let begun = Instant::now();
        loop {
            let (code, out, _) = state(&[&[action[0], folder.to_str().unwrap()], &action[1..]].concat());
            if code == Some(0) && out.contains(part) {
                return out;
            }
            assert!(begun.elapsed() < DEADLINE, "{out}{}", fs::read_to_string(scene.path("said")).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let ls = wait_for(&["ls"], "  keys  5 items");
    has(&ls, &[&format!("holder   process {} on host ", job.id()), ", alive\n"]);
    has(&ls, &["clock    1600000099000 (2020-09-13T12:28:19Z)", "time 2020-09-13T12:28:20Z"]);
    has(&printed("verify", &folder, &[]), &["whole: "]);
    has(&printed("show", &folder, &["--key", "z:9"]), &["waiting  side 1 two", TWO[1]]);

    for name in ["one", "two"] {
        let mut file = fs::OpenOptions::new().append(true).open(scene.path(&format!("{name}.jsonl"))).unwrap();
        writeln!(file, r#"{{"k":"{name}","n":0,"t":1600000105000}}"#).unwrap();
    }
    let show = wait_for(&["show", "--key", "c:3"], "delayed  ");
    has(
        &show,
        &["delayed  its records are kept until 2020-09-13T12:", "clock at arrival  2020-09-13T12:28:19Z", ONE[1]],
    );
    let export = printed("export", &folder, &[]);
    has(&export, &[r#""key":"c:3","key_fields":["c",3],"item":"held","delayed":true,"#]);

    assert!(job.try_wait().unwrap().is_none(), "{}", fs::read_to_string(scene.path("said")).unwrap());
    job.kill().unwrap();
    job.wait().unwrap();
    has(&printed("ls", &folder, &[]), &[", not alive\n"]);
    has(&printed("verify", &folder, &[]), &["whole: "]);
}

#[test]
fn a_wrong_command_line_is_exit_code_2_and_a_missing_folder_1() {
    let (code, out, err) = state(&["shw", "x"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    has(
        &err,
        &["there is no command \"state shw\": did you mean syncline state show?", "syncline state --help says more"],
    );
    let (code, _, err) = state(&["show", "x", "--kye", "a"]);
    assert_eq!(code, Some(2));
    has(&err, &["unknown option --kye: did you mean --key?"]);
    let (code, _, err) = state(&["ls", "/nowhere/at/all"]);
    assert_eq!(code, Some(1));
    has(&err, &["folder \"/nowhere/at/all\" cannot be looked at"]);
    let (code, out, _) = state(&["--help"]);
    assert_eq!(code, Some(0));
    has(&out, &["syncline state export FOLDER [--collection NAME]"]);
    let folder = tempfile::tempdir().unwrap();
    for job in ["a_sync", "b_sync"] {
        fs::create_dir_all(folder.path().join(job).join("manifests")).unwrap();
    }
    let (code, _, err) = state(&["verify", folder.path().to_str().unwrap()]);
    assert_eq!(code, Some(2));
    has(&err, &["holds 2 jobs: name one of", "a_sync", "b_sync"]);
}
