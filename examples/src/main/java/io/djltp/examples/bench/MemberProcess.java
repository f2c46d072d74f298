package io.djltp.examples.bench;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.launch.Backend;
import io.djltp.launch.Connector;
import io.djltp.torch.TensorView;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The main class of a JVM with some members of a job. It gets a {@link MemberTask} as JSON in the
 * first line of its standard input, then does what each line says, and answers each with a {@link
 * MemberReport} in a line of standard output that begins with {@value BenchWorker#MARK}.
 */
public final class MemberProcess {

    static final String JOIN = "join";
    static final String EXCHANGE = "exchange";
    static final String REDUCE = "reduce";
    static final String REPORT = "report";
    static final String FAIL = "fail";
    static final String AWAIT_FAILURE = "await failure";
    static final String CLOSE = "close";

    private static final Gson GSON = new Gson();
    private static final String LOOPBACK = "127.0.0.1";
    private static final int ELEMENTS = 4096;

    private final MemberTask task;
    // whose threads end before they are counted
    private final ExecutorService threads =
            new ThreadPoolExecutor(
                    0, Integer.MAX_VALUE, 100, TimeUnit.MILLISECONDS, new SynchronousQueue<>());
    private final List<Job> jobs = Collections.synchronizedList(new ArrayList<>());
    private int exchanges;

    private MemberProcess(MemberTask task) {
        this.task = task;
    }

    /** What each member does; what it returns goes into the report. */
    private interface Part {
        String run(Job job) throws Exception;
    }

    /**
     * Runs the process until its input ends.
     *
     * @param args none
     * @throws IOException if it cannot be talked with
     */
    public static void main(String[] args) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever a library prints is not an answer
        try (BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            MemberProcess process =
                    new MemberProcess(GSON.fromJson(in.readLine(), MemberTask.class));
            answer(answers, MemberReport.now(System.nanoTime(), ""));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                answer(answers, process.run(line));
            }
            Runtime.getRuntime().halt(0);
        } catch (Throwable e) { // an OutOfMemoryError too
            e.printStackTrace();
            answers.println(BenchWorker.MARK + BenchWorker.ERROR + " " + e);
            Runtime.getRuntime().halt(1);
        }
    }

    private static void answer(PrintStream answers, MemberReport report) {
        answers.println(BenchWorker.MARK + GSON.toJson(report));
        answers.flush();
    }

    private MemberReport run(String command) throws Exception {
        switch (command) {
            case JOIN:
                return join();
            case EXCHANGE:
                String name = "exchange " + exchanges++;
                return all(job -> "" + job.exchange(name, new byte[8]).length);
            case REDUCE:
                return all(MemberProcess::reduce);
            case FAIL:
                jobs.get(0).fail(jobs.get(0).getFirstRank(), new IllegalStateException("on order"));
                return all(MemberProcess::awaitFailure);
            case AWAIT_FAILURE:
                return all(MemberProcess::awaitFailure);
            case CLOSE:
                return all(
                        job -> {
                            job.close();
                            return "";
                        });
            default:
                return MemberReport.now(System.nanoTime(), "");
        }
    }

    private MemberReport join() throws Exception {
        JobOptions options =
                JobOptions.builder()
                        .setRanks(task.members())
                        .optSecret(task.secret().getBytes(StandardCharsets.UTF_8))
                        .optHeartbeatTimeout(Duration.ofMillis(task.heartbeatMillis()))
                        .optTimeout(Duration.ofMillis(task.timeoutMillis()))
                        .build();
        List<Future<?>> joining = new ArrayList<>();
        for (int i = 0; i < task.count(); i++) {
            int process = task.first() + i;
            LaunchEnvironment environment =
                    new LaunchEnvironment(
                            "bench", process, task.members(), process, LOOPBACK, task.port());
            joining.add(threads.submit(() -> jobs.add(Job.join(environment, options))));
        }
        for (Future<?> each : joining) {
            each.get();
        }
        return MemberReport.now(System.nanoTime(), "");
    }

    /** Lets all members do something at the same time. */
    private MemberReport all(Part part) throws Exception {
        List<Future<String>> running = new ArrayList<>();
        jobs.forEach(job -> running.add(threads.submit(() -> part.run(job))));
        Set<String> texts = new TreeSet<>();
        for (Future<String> each : running) {
            texts.add(get(each));
        }
        return MemberReport.now(System.nanoTime(), String.join("; ", texts));
    }

    private static String get(Future<String> future) throws Exception {
        try {
            return future.get();
        } catch (ExecutionException e) {
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    private static String awaitFailure(Job job) {
        JobFailedException failure = job.awaitFailure(Duration.ofMinutes(5));
        return failure == null ? "no failure" : failure.getMessage();
    }

    /** Sums the members' numbers over sockets between all pairs of them. */
    private static String reduce(Job job) {
        Device device = Device.cpu();
        List<Communicator> group =
                Connector.connect(Backend.TCP, List.of(device), job, Duration.ofMinutes(1));
        try (Communicator world = group.get(0);
                NDManager manager = NDManager.newBaseManager(device);
                NDArray array = manager.ones(new Shape(ELEMENTS)).muli(job.getProcess())) {
            world.allReduce(TensorView.of(array), ReduceOp.SUM).await();
            return "" + array.sum().getFloat() / ELEMENTS;
        }
    }
}
