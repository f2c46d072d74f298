package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.TENSOR_2;

import io.djltp.collective.ForkedJvm;
import io.djltp.testing.TestFolder;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Signals end a training after the step at work, with a checkpoint; two of them at once. */
public class StoppedFitTest {

    private Path parent;

    @BeforeMethod
    public void makeFolder() throws IOException {
        parent = TestFolder.create();
    }

    /** Sends a signal to this process, and waits until the training has heard of it. */
    private static void raise(String name) {
        try {
            Class<?> type = Class.forName("sun.misc.Signal");
            Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
            Object signal = type.getConstructor(String.class).newInstance(name);
            Method handle = type.getMethod("handle", type, handlerType);
            CountDownLatch heard = new CountDownLatch(1);
            AtomicReference<Object> ofTraining = new AtomicReference<>();
            Object listener =
                    Proxy.newProxyInstance(
                            handlerType.getClassLoader(),
                            new Class<?>[] {handlerType},
                            (proxy, method, arguments) -> {
                                method.invoke(ofTraining.get(), arguments);
                                heard.countDown();
                                return null;
                            });
            ofTraining.set(handle.invoke(null, signal, listener));
            type.getMethod("raise", type).invoke(null, signal);
            Assert.assertTrue(heard.await(30, TimeUnit.SECONDS), "nobody heard " + name);
            handle.invoke(null, signal, ofTraining.get());
        } catch (ReflectiveOperationException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Raises a signal at a batch of training or of validation. */
    static FittedRun.At raiser(String signal, int batch, int validated) {
        return new FittedRun.At(batch, validated, () -> raise(signal));
    }

    /**
     * Not SIGINT: who starts the tests in the background lets them ignore it.
     *
     * <p>Signal, batch of training or of validation, the step after which training ends, status.
     */
    @DataProvider
    public static Object[][] moments() {
        return new Object[][] {
            {"TERM", 3, 0, 3, 143},
            {"TERM", FittedRun.BATCHES, 0, FittedRun.BATCHES, 143},
            {"USR1", 0, 2, FittedRun.BATCHES, 138},
        };
    }

    @Test(dataProvider = "moments", timeOut = 60_000)
    public void aSignalEndsWithACheckpoint(
            String signal, int batch, int validated, int step, int status) throws Exception {
        FittedRun expected = new FittedRun(TENSOR_2, parent.resolve("whole")).run(5);
        FittedRun stopped =
                new FittedRun(TENSOR_2, parent.resolve("stopped"))
                        .with(raiser(signal, batch, validated));
        stopped.settings().optEverySteps(1000).optSignals("TERM", "INT", "USR1");
        TrainingStoppedException exception =
                Assert.expectThrows(TrainingStoppedException.class, () -> stopped.run(5));
        Assert.assertEquals(
                exception.getMessage(),
                "SIG%s has ended the training after step %d, of which there is a checkpoint in %s"
                        .formatted(signal, step, stopped.folder()));
        Assert.assertEquals(exception.getExitStatus(), status);
        Assert.assertTrue(exception.isSaved());
        FittedRun resumed = new FittedRun(TENSOR_2, stopped.folder()).with(FittedRun.At.NEVER);
        resumed.settings().optEverySteps(1000);
        resumed.run(6).assertSame(expected, signal);
    }

    @Test(
            timeOut = 60_000,
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*no signal KILL to listen to")
    public void aSignalThatCannotBeHeardIsRefused() throws Exception {
        FittedRun run = new FittedRun(TENSOR_2, parent);
        run.settings().optSignals("KILL");
        run.run(5);
    }

    /** A step that lasts a minute: the first signal waits for it, the second one does not. */
    @Test(timeOut = 120_000)
    public void theSecondSignalEndsAtOnce() throws Exception {
        Path log = parent.resolve("log");
        Process process =
                new ForkedJvm()
                        .option("-Xmx128m")
                        .option("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
                        .builder(log, SlowStep.class, parent.resolve("slow").toString())
                        .start();
        try {
            awaitText(log, "slow step", process);
            process.destroy();
            awaitText(log, "SIGTERM: training ends after this step", process);
            Assert.assertTrue(process.isAlive());
            process.destroy();
            Assert.assertTrue(process.waitFor(30, TimeUnit.SECONDS), Files.readString(log));
            Assert.assertEquals(process.exitValue(), 143);
            Assert.assertTrue(
                    Files.readString(log).contains("SIGTERM after SIGTERM: the process ends"),
                    Files.readString(log));
        } finally {
            process.destroyForcibly();
        }
        // the checkpoint of the step before is good
        Assert.assertTrue(new FittedRun(TENSOR_2, parent.resolve("slow")).run(6).resumed);
    }

    private static void awaitText(Path log, String text, Process process) throws Exception {
        while (!Files.readString(log).contains(text)) {
            Assert.assertTrue(process.isAlive(), Files.readString(log));
            Thread.sleep(20);
        }
    }

    /** A training whose fifth step lasts a minute. */
    static final class SlowStep {

        private SlowStep() {}

        public static void main(String[] args) throws Exception {
            FittedRun run =
                    new FittedRun(TENSOR_2, Path.of(args[0]))
                            .with(new FittedRun.At(5, 0, SlowStep::sleep));
            run.settings().optSignals("TERM", "INT");
            run.run(5);
        }

        private static void sleep() {
            System.out.println("slow step");
            Unchecked.run(() -> Thread.sleep(60_000));
        }
    }
}
