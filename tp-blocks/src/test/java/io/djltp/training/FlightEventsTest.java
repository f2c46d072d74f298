package io.djltp.training;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.loss.Loss;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.ForkedJvm;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.launch.Backend;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TestFolder;

import jdk.jfr.Event;
import jdk.jfr.Name;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/** A recording of Java Flight Recorder has the events of a training. */
public class FlightEventsTest {

    private static final List<Backend> BACKENDS = List.of(Backend.LOCAL, Backend.TCP);
    private static final int STEPS = 3;
    private static final int SLEEP = 30;

    private final Map<Backend, Recorded> recorded = new EnumMap<>(Backend.class);

    /** A training: its events, what rank 0 has counted, and the bytes of its checkpoint. */
    private record Recorded(List<RecordedEvent> events, CollectiveCounts counts, long bytes) {

        Stream<RecordedEvent> select(String name) {
            return events.stream().filter(each -> isNamed(each, name));
        }

        List<RecordedEvent> select(String name, int rank) {
            return select(name).filter(each -> each.getInt("rank") == rank).toList();
        }
    }

    /** Ends the training over a backend. */
    @Name("io.djltp.test.End")
    static final class End extends Event {}

    /** Records both trainings at once: JDK 17 loses texts in the second recording of a JVM. */
    @BeforeClass
    public void record() throws Exception {
        Path folder = TestFolder.create();
        try (Recording recording = new Recording()) {
            recording.start();
            for (Backend backend : BACKENDS) {
                Path checkpoints = folder.resolve(backend.getName());
                CollectiveCounts counts = train(backend, checkpoints);
                new End().commit();
                recorded.put(
                        backend, new Recorded(new ArrayList<>(), counts, tensorBytes(checkpoints)));
            }
            recording.stop();
            Path file = folder.resolve("run.jfr");
            recording.dump(file);
            List<RecordedEvent> all = new ArrayList<>(RecordingFile.readAllEvents(file));
            all.removeIf(each -> !each.getEventType().getName().startsWith("io.djltp."));
            all.sort(Comparator.comparing(RecordedEvent::getEndTime));
            Iterator<Recorded> trainings = recorded.values().iterator();
            Recorded training = trainings.next();
            for (RecordedEvent each : all) {
                training.events.add(each);
                if (isNamed(each, "test.End") && trainings.hasNext()) {
                    training = trainings.next();
                }
            }
        }
    }

    @DataProvider
    public static Object[][] backends() {
        return BACKENDS.stream().map(each -> new Object[] {each}).toArray(Object[][]::new);
    }

    @Test(dataProvider = "backends")
    public void thereIsAnEventForEachStepAndPass(Backend backend) {
        Recorded training = recorded.get(backend);
        List<RecordedEvent> steps = training.select("Step").toList();
        Assert.assertEquals(
                steps.stream().map(each -> each.getLong("step")).toList(), List.of(1L, 2L, 3L));
        for (RecordedEvent step : steps) {
            Assert.assertEquals(step.getInt("ranks"), 2);
            Assert.assertTrue(step.getDuration().toMillis() >= SLEEP / 2, "" + step);
        }
        Map<String, Long> passes = new TreeMap<>();
        training.select("Pass")
                .map(each -> each.getString("pass") + " " + each.getInt("rank"))
                .forEach(each -> passes.merge(each, 1L, Long::sum));
        Assert.assertEquals(
                passes.toString(),
                "{backward 0=3, backward 1=3, forward 0=6, forward 1=6, loss 0=3, loss 1=3, step 0=3,"
                        + " step 1=3}");
    }

    @Test(dataProvider = "backends")
    public void thereIsAnEventForEachCollectiveOperation(Backend backend) {
        Recorded training = recorded.get(backend);
        List<RecordedEvent> calls = training.select("Collective", 0);
        Assert.assertEquals(calls.size(), training.counts.total());
        Assert.assertEquals(training.select("Collective", 1).size(), calls.size());
        long bytes = calls.stream().mapToLong(each -> each.getLong("bytes")).sum();
        Assert.assertEquals(bytes, training.counts.bytes());
        List<RecordedEvent> rows =
                calls.stream()
                        .filter(each -> each.getString("issuer").equals("03RowParallelLinear"))
                        .toList();
        Assert.assertEquals(rows.size(), 2 * STEPS); // with the evaluation
        for (RecordedEvent row : rows) {
            Assert.assertEquals(row.getString("pass"), "forward");
            Assert.assertEquals(row.getString("operation"), "all-reduce");
            Assert.assertEquals(row.getLong("bytes"), 4 * 3 * 4);
            Assert.assertEquals(row.getString("group"), "");
            Assert.assertEquals(row.getInt("groupSize"), 2);
            Assert.assertEquals(row.getString("backend"), backend.getName());
        }
    }

    @Test(dataProvider = "backends")
    public void aRankWaitsForOneThatIsLate(Backend backend) {
        Recorded training = recorded.get(backend);
        for (int rank = 0; rank < 2; rank++) {
            List<RecordedEvent> waits = training.select("CollectiveWait", rank);
            Assert.assertEquals(waits.size(), training.counts.total());
            long millis = waits.stream().mapToLong(each -> each.getDuration().toMillis()).sum();
            Assert.assertTrue(rank == 1 || millis >= SLEEP, millis + " ms of " + STEPS * SLEEP);
        }
    }

    @Test(dataProvider = "backends")
    public void thereIsAnEventForEachCheckpoint(Backend backend) {
        Recorded training = recorded.get(backend);
        List<RecordedEvent> saves = training.select("CheckpointSave").toList();
        Assert.assertEquals(saves.size(), 1);
        Assert.assertEquals(saves.get(0).getLong("step"), STEPS);
        Assert.assertTrue(saves.get(0).getBoolean("complete"));
        Assert.assertEquals(saves.get(0).getLong("bytes"), training.bytes);
        Assert.assertTrue(training.bytes > 0);
    }

    /** A Java runtime that jlink has made may lack the module. */
    @Test(timeOut = 120_000)
    public void aRuntimeWithoutFlightRecorderTrains() throws Exception {
        String modules = "java.base,java.desktop,java.logging,java.management,jdk.unsupported";
        new ForkedJvm().option("--limit-modules=" + modules).succeed(WithoutFlightRecorder.class);
    }

    /** Trains in a JVM of its own. */
    static final class WithoutFlightRecorder {

        private WithoutFlightRecorder() {}

        public static void main(String[] args) throws Exception {
            if (ModuleLayer.boot().findModule("jdk.jfr").isPresent()) {
                throw new IllegalStateException("There is a Flight Recorder");
            }
            train(Backend.LOCAL, Files.createTempDirectory("events"));
        }
    }

    private static CollectiveCounts train(Backend backend, Path folder) throws Exception {
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder).optEveryEpoch(true).build();
        ParallelConfig ranks =
                Ranks.builder(ParallelMode.TENSOR, 2)
                        .optBackend(backend)
                        .optTimeout(Duration.ofSeconds(30))
                        .build();
        try (Model model = Model.newInstance("recorded");
                NDManager manager = NDManager.newBaseManager()) {
            Block lateRank =
                    new LambdaBlock(
                            inputs -> {
                                ParallelContext rank = ParallelContext.current();
                                if (rank != null && rank.getRank() == 1) { // not for shapes
                                    sleep();
                                }
                                return inputs;
                            });
            model.setBlock(
                    new SequentialBlock()
                            .add(ColumnParallelLinear.builder().setUnits(6).build())
                            .add(lateRank)
                            .add(RowParallelLinear.builder().setUnits(3).build()));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(manager.ones(new Shape(4 * STEPS, 5)))
                            .optLabels(manager.ones(new Shape(4 * STEPS, 3)))
                            .setSampling(4, false)
                            .build();
            ParallelTrainer trainer =
                    new ParallelTrainer(
                            model,
                            Configs.of(Loss.l2Loss(), Configs.adam(0.01f))
                                    .addTrainingListeners(
                                            new EvaluatorTrainingListener(), checkpoints),
                            ranks);
            try (trainer) {
                trainer.initialize(new Shape(4, 5));
                EasyTrain.fit(trainer, 1, data, data);
            }
            return trainer.getCollectiveCounts(); // with those of its close
        }
    }

    private static void sleep() {
        try {
            Thread.sleep(SLEEP);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean isNamed(RecordedEvent event, String name) {
        return event.getEventType().getName().equals("io.djltp." + name);
    }

    private static long tensorBytes(Path folder) throws Exception {
        try (Stream<Path> files = Files.walk(folder)) {
            return files.filter(each -> each.toString().endsWith(".safetensors"))
                    .mapToLong(each -> each.toFile().length())
                    .sum();
        }
    }
}
