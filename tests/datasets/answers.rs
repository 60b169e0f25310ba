//! The commands of `datasets/README.md`, run as they stand there: the answer of the real binary is the expected one, and every
//! record is found again by scripts that share no code with it.

use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The blocks that run a job, with the name of the set.
fn commands() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(format!("{ROOT}/datasets/README.md")).unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let jobs = blocks.filter(|block| block.starts_with("syncline sync"));
    let named = jobs.map(|block| {
        let name = block.split("file:datasets/").nth(1).unwrap().split_whitespace().next().unwrap();
        (name.to_owned(), block.to_owned())
    });
    named.collect()
}

/// Runs a script in the root of the repository; returns what it printed.
fn bash(script: &str) -> String {
    let output = Command::new("bash").args(["-euc", script]).current_dir(ROOT).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}\n{out}\n{err}");
    out.into_owned()
}

fn run_as_documented(workers: usize) {
    let commands = commands();
    assert_eq!(commands.len(), syncline::datasets::BUNDLED.len());
    for (name, block) in commands {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().display();
        let log = folder.path().join("log");
        let block = block.replace("out/", &format!("{out}/"));
        let (job, check) = block.split_once("python3").unwrap();
        let binary = env!("CARGO_BIN_EXE_syncline");
        let job = job.replacen("syncline", binary, 1).trim().to_owned();
        bash(&format!("{job} -w {workers} > {}\npython3 {check}", log.display()));
        let inputs: Vec<&str> = job.split("--topic_").skip(1).filter(|rest| !rest.contains("_keys")).collect();
        let inputs: Vec<String> = inputs
            .iter()
            .filter_map(|rest| rest.split_whitespace().nth(1))
            .map(|topic| format!("'datasets/{name}/{topic}-p*.jsonl'"))
            .collect();
        assert_eq!(inputs.len(), 2, "{job}");
        let outputs = format!("{out}/{name}/fasten");
        bash(&format!(
            "python3 tests/conservation.py --log {} --in {} --joined '{outputs}.sync.out*.jsonl' \
             --delay '{outputs}.delay.out*.jsonl' --dead '{outputs}.dead.out*.jsonl'",
            log.display(),
            inputs.join(" ")
        ));
    }
}

#[test]
fn the_documented_commands_give_the_expected_answers() {
    run_as_documented(1);
}

#[test]
fn three_workers_give_the_expected_answers() {
    run_as_documented(3);
}
