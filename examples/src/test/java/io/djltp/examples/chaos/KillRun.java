package io.djltp.examples.chaos;

import static java.nio.charset.StandardCharsets.UTF_8;

import ai.djl.util.Utils;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** Carries out a plan: starts a job, kills one of its processes, and looks how the others end. */
final class KillRun implements AutoCloseable {

    /** The time-out of the jobs. */
    static final int TIMEOUT_SECONDS = 5;

    /** How much longer than the time-out a process may take to end, on a busy machine. */
    static final int GRACE_SECONDS = 30;

    private static final int START_SECONDS = 60;

    final KillPlan plan;

    /** From the signal to the end of the last survivor that ended with an error. */
    double seconds;

    /** What went wrong, with the logs. */
    final List<String> problems = new ArrayList<>();

    /**
     * Whether it did not happen as planned: the job ended before anything was done to it, on a
     * machine so busy that its processes did not come together in time; or the system continued the
     * frozen process, as it does when the shell of a terminal ends.
     */
    boolean spoiled;

    /** How many survivors had all they needed, and ended with success. */
    int finished;

    private final Path folder;
    private final List<Process> processes = new ArrayList<>();

    private KillRun(KillPlan plan, Path folder) {
        this.plan = plan;
        this.folder = folder;
    }

    /** Returns whether it happened as planned, and all ended as they should. */
    boolean isClean() {
        return !spoiled && problems.isEmpty();
    }

    /**
     * Carries out a plan.
     *
     * @param plan the plan
     * @return how it went
     */
    static KillRun of(KillPlan plan) throws IOException, InterruptedException {
        Path folder = Files.createTempDirectory("chaos");
        KillRun run = new KillRun(plan, folder);
        try (run) {
            run.start();
            run.kill();
        } finally {
            Utils.deleteQuietly(folder);
        }
        return run;
    }

    private void start() throws IOException {
        List<Path> logs = IntStream.range(0, plan.processes()).mapToObj(this::log).toList();
        int ranks = plan.processes() * plan.ranks();
        List<String> arguments =
                List.of(
                        plan.mode().name(),
                        "" + ranks,
                        "" + plan.steps(),
                        "" + TIMEOUT_SECONDS,
                        "" + (plan.isOfAWholeJob() ? START_SECONDS : TIMEOUT_SECONDS));
        processes.addAll(ForkedJob.start(ToyJob.class, arguments, logs));
    }

    private void kill() throws IOException, InterruptedException {
        awaitPhase();
        Process victim = processes.get(plan.victim());
        if (!spoiled) {
            signal(plan.frozen() ? "STOP" : "KILL", victim);
        }
        long begin = System.nanoTime();
        List<Integer> survivors =
                IntStream.range(0, plan.processes())
                        .filter(i -> i != plan.victim())
                        .boxed()
                        .toList();
        awaitEnds(survivors, begin);
        if (!spoiled && plan.frozen() && victim.isAlive() && !isStopped(victim)) {
            spoiled = true;
            problem(plan.victim(), "was continued by the system");
            return;
        }
        for (int survivor : survivors) {
            check(survivor);
        }
        if (plan.frozen()) {
            signal("CONT", victim);
        }
        checkVictim(victim);
        if (spoiled) {
            problem(plan.victim(), "was to be lost, and the job had ended before");
        }
    }

    private void awaitPhase() throws IOException, InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
        while (plan.phase() != KillPlan.Phase.LAUNCH
                && !hasReached(plan.victim(), plan.phase())
                && processes.get(plan.victim()).isAlive()
                && System.nanoTime() < deadline) {
            Thread.sleep(1);
        }
        Thread.sleep(plan.delayMillis());
        boolean reached =
                plan.phase() == KillPlan.Phase.LAUNCH || hasReached(plan.victim(), plan.phase());
        // at the end of a job its processes may end before the signal, as they should
        spoiled =
                !reached
                        || plan.phase() != KillPlan.Phase.CLOSING
                                && processes.stream().anyMatch(process -> !process.isAlive());
    }

    private void awaitEnds(List<Integer> numbers, long begin) throws InterruptedException {
        List<Integer> left = new ArrayList<>(numbers);
        long end = begin + TimeUnit.SECONDS.toNanos(TIMEOUT_SECONDS + GRACE_SECONDS);
        while (!left.isEmpty() && System.nanoTime() < end) {
            for (int number : List.copyOf(left)) {
                Process process = processes.get(number);
                if (!process.isAlive()) {
                    left.remove((Integer) number);
                    if (process.exitValue() != 0) {
                        seconds = (System.nanoTime() - begin) / 1e9;
                    }
                }
            }
            Thread.sleep(5);
        }
    }

    private void check(int survivor) throws IOException, InterruptedException {
        Process process = processes.get(survivor);
        if (process.isAlive()) {
            hangs(survivor);
        } else if (process.exitValue() != 0) {
            List<String> errors = errors(survivor);
            if (errors.size() != 1) {
                problem(survivor, "has " + errors.size() + " lines of error");
            } else if (!spoiled && !plan.isNamedIn(errors.get(0))) {
                problem(survivor, "does not name the process that was lost");
            }
        } else if (hasReached(plan.victim(), KillPlan.Phase.CLOSING)) {
            finished++;
        } else {
            problem(survivor, "ended with status 0");
        }
    }

    private void checkVictim(Process victim) throws IOException, InterruptedException {
        if (!victim.waitFor(TIMEOUT_SECONDS + GRACE_SECONDS, TimeUnit.SECONDS)) {
            hangs(plan.victim());
        } else if (plan.frozen() && victim.exitValue() != 0 && errors(plan.victim()).size() != 1) {
            problem(plan.victim(), "has not one line of error after it was frozen");
        } else if (plan.frozen()
                && victim.exitValue() == 0
                && !hasReached(plan.victim(), KillPlan.Phase.CLOSING)) {
            problem(plan.victim(), "ended with status 0 after it was frozen");
        }
    }

    private void hangs(int number) throws IOException, InterruptedException {
        signal("QUIT", processes.get(number)); // for the stacks of its threads
        Thread.sleep(1000);
        problem(number, "hangs");
    }

    private void problem(int number, String what) throws IOException {
        StringBuilder text = new StringBuilder("process " + number + " " + what);
        for (int i = 0; i < plan.processes(); i++) {
            text.append("\n--- process ").append(i);
            text.append(processes.get(i).isAlive() ? "" : " " + processes.get(i).exitValue());
            text.append('\n').append(read(i));
        }
        problems.add(text.toString());
    }

    private boolean hasReached(int number, KillPlan.Phase phase) throws IOException {
        return read(number).lines().anyMatch(phase.line()::equals);
    }

    private List<String> errors(int number) throws IOException {
        return read(number).lines().filter(line -> line.startsWith(ToyJob.ERROR)).toList();
    }

    private String read(int number) throws IOException {
        // the end of a line may be missing, and with it half a letter
        return new String(Files.readAllBytes(log(number)), UTF_8);
    }

    private Path log(int number) {
        return folder.resolve(number + ".txt");
    }

    private static void signal(String name, Process process)
            throws IOException, InterruptedException {
        if (process.isAlive()) {
            new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
        }
    }

    private static boolean isStopped(Process process) throws IOException {
        ProcessBuilder builder = new ProcessBuilder("ps", "-o", "stat=", "-p", "" + process.pid());
        String state = new String(builder.start().getInputStream().readAllBytes(), UTF_8);
        return state.startsWith("T");
    }

    /** Leaves no process behind. */
    @Override
    public void close() {
        for (Process process : processes) {
            process.destroyForcibly();
            try {
                if (!process.waitFor(GRACE_SECONDS, TimeUnit.SECONDS)) {
                    problems.add("process " + process.pid() + " cannot be ended");
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
