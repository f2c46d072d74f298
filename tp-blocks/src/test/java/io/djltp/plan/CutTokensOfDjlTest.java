package io.djltp.plan;

import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Activation;
import ai.djl.nn.transformer.TransformerEncoderBlock;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

/** The encoder of DJL's BERT has no form with cut tokens: it is refused before the first step. */
public class CutTokensOfDjlTest {

    @Test(timeOut = 60_000)
    public void anEncoderIsRefused() {
        Network net =
                Network.of(
                        cut ->
                                sequence(
                                        cut ? new SequenceScatter() : map(x -> x),
                                        TensorParallel.parallelize(
                                                new TransformerEncoderBlock(
                                                        6, 2, 8, 0, Activation::relu),
                                                Plan.auto()),
                                        cut ? new SequenceGather() : map(x -> x)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(TrainingRun.random(manager, step, 2, 4, 6)),
                                    new NDList(TrainingRun.random(manager, 9 + step, 2, 4, 6))
                                });
        net.assertRefused(
                new TrainerKind(ParallelMode.TENSOR, 2),
                "gets this rank's tokens, (2, 2, 6), of a sequence-parallel region, and needs all",
                "SequenceGather");
    }
}
