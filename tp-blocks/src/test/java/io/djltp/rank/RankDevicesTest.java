package io.djltp.rank;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.Test;

import java.util.Collections;
import java.util.List;

/** The GPUs of DJL's training configuration are those of the ranks. */
public class RankDevicesTest {

    private static final Device[] FOUR = {
        Device.gpu(0), Device.gpu(1), Device.gpu(2), Device.gpu(3)
    };
    private static final Device[] TWO = {Device.gpu(0), Device.gpu(1)};

    @Test
    public void testEachRankTakesOneGpu() {
        List<Device> two = List.of(Device.gpu(0), Device.gpu(1));
        assertEquals(RankDevices.choose(FOUR, 0, 2), two);
        assertEquals(RankDevices.choose(FOUR, 0, 4), List.of(FOUR));
        assertEquals(config(2).onDevices(FOUR).getDevices(), two);
    }

    @Test
    public void testProcessesOfAMachineShareItsGpus() {
        assertEquals(RankDevices.choose(FOUR, 2, 2), List.of(Device.gpu(2), Device.gpu(3)));
        // a launcher that shows each process its own GPUs alone
        assertEquals(RankDevices.choose(TWO, 2, 2), List.of(TWO));
    }

    @Test
    public void testCpuMeansCpuForAll() {
        assertEquals(
                config(3).onDevices(Device.cpu()).getDevices(),
                Collections.nCopies(3, Device.cpu()));
        assertEquals(config(3).onDevices().getDevices(), Collections.nCopies(3, Device.cpu()));
    }

    @Test
    public void testNamedDevicesWin() {
        ParallelConfig named =
                Ranks.builder(ParallelMode.DATA, 2)
                        .optDevices(List.of(Device.cpu(), Device.cpu()))
                        .build();
        assertSame(named.onDevices(FOUR), named);
        assertEquals(config(2).onDevices(FOUR).onDevices(Device.cpu()).getDevices(), List.of(TWO));
    }

    @Test
    public void testTheRestOfTheConfigurationStays() {
        ParallelConfig config =
                Ranks.builder(ParallelMode.TENSOR, 2).optThreadsPerRank(3).optDriftCheck(5).build();
        ParallelConfig moved = config.onDevices(TWO);
        assertEquals(moved.getMode(), config.getMode());
        assertEquals(moved.getRanks(), 2);
        assertEquals(moved.getLocalRanks(), 2);
        assertEquals(moved.getThreadsPerRank(), 3);
        assertTrue(moved.isDriftCheckDue(5) && !moved.isDriftCheckDue(4));
        assertEquals(moved.getTimeout(), config.getTimeout());
        assertEquals(moved.getBackend(), config.getBackend());
    }

    @Test
    public void testTooFewGpusIsOneClearError() {
        assertRefused("5 ranks need as many GPUs, and the training configuration has 4", 0, 5);
        assertRefused("5 ranks of this machine need as many GPUs", 3, 2);
    }

    @Test
    public void testGpusAndCpusAreRefused() {
        Device[] mixed = {Device.gpu(0), Device.cpu()};
        assertThrows(IllegalArgumentException.class, () -> RankDevices.choose(mixed, 0, 2));
    }

    /** The trainer asks the training configuration: one GPU cannot be that of two ranks. */
    @Test(timeOut = 60_000)
    public void testTrainerUsesTheTrainingConfiguration() {
        try (Model model = Model.newInstance("devices", Device.cpu())) {
            model.setBlock(Linear.builder().setUnits(2).build());
            DefaultTrainingConfig oneGpu =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optDevices(new Device[] {Device.gpu(0)});
            Refusals.throwsArgument(
                    () -> new ParallelTrainer(model, oneGpu, config(2)), "has 1 ([gpu(0)])");
            DefaultTrainingConfig cpu =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = new ParallelTrainer(model, cpu, config(2))) {
                assertEquals(trainer.getDevices(), new Device[] {Device.cpu()});
            }
        }
    }

    private static void assertRefused(String message, int before, int ranks) {
        IllegalArgumentException e =
                expectThrows(
                        IllegalArgumentException.class,
                        () -> RankDevices.choose(FOUR, before, ranks));
        assertTrue(e.getMessage().startsWith(message), e.getMessage());
        assertTrue(e.getMessage().contains("Device.cpu()"), e.getMessage());
    }

    private static ParallelConfig config(int ranks) {
        return Ranks.config(ParallelMode.DATA, ranks);
    }
}
