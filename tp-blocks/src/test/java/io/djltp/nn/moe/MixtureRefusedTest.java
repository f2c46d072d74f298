package io.djltp.nn.moe;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Input that a mixture of experts is not for: one error each, on every rank, before a step. */
public class MixtureRefusedTest {

    private static final TrainerKind[] KINDS = {TENSOR_2, MIXED_3, DATA_2, MESH_2X2};

    private static MixtureOfExperts.Builder mixture() {
        return MixtureOfExperts.builder().setExperts(3).setHiddenFeatures(6);
    }

    @DataProvider
    public static Object[][] options() {
        return new Object[][] {
            {MixtureOfExperts.builder(), "setExperts and setHiddenFeatures of 1 or more"},
            {mixture().optTopK(4), "sent to 1 to 3 of 3 experts, not to 4: set optTopK"},
            {mixture().optTopK(0), "not to 0"},
            {mixture().optCapacityFactor(0), "must be greater than 0, not 0.0"},
            {mixture().optCapacityFactor(-1), "must be greater than 0, not -1.0"},
            {mixture().optCapacityFactor(Double.NaN), "must be greater than 0, not NaN"},
            {
                mixture().optStrategy(ShardingStrategy.rowwise()),
                "give optStrategy expertParallel() or tensorParallel()"
            },
            {
                mixture().optStrategy(ShardingStrategy.tensorParallel()).optExchangeTokens(true),
                "optExchangeTokens(true) needs the strategy expertParallel()"
            }
        };
    }

    @Test(dataProvider = "options")
    public void options(MixtureOfExperts.Builder options, String message) {
        Refusals.throwsArgument(options::build, message);
    }

    @Test(timeOut = 60_000)
    public void moreRanksThanExperts() {
        try (Model model = Blocks.model(mixture().build())) {
            TrainerKind kind = TENSOR_4;
            try (Trainer trainer = kind.open(model, new DefaultTrainingConfig(Loss.l2Loss()))) {
                Refusals.throwsArgument(
                        () -> trainer.initialize(new Shape(7, 4)),
                        "hiddenWeight",
                        "leaves rank 3 empty",
                        "at most 3 ranks");
            }
        }
    }

    /** One row has a NaN: where rows are cut, on one rank only. */
    @Test(timeOut = 60_000)
    public void logitsThatAreNoNumbers() {
        Network net =
                Network.of(
                        cut -> sequence(linear(4), mixture().build(), linear(3)),
                        HalfSquareLoss::new,
                        (manager, step) -> {
                            NDList[] batch = Network.regression(7, 4, 3).make(manager, step);
                            NDArray last = manager.full(new Shape(4), Float.NaN);
                            batch[0].head().set(new NDIndex(6), last);
                            return batch;
                        });
        for (TrainerKind kind : KINDS) {
            net.assertRefused(kind, "MixtureOfExperts of 3 experts", "not a number");
        }
    }

    @Test(timeOut = 60_000)
    public void slicesOfTheFeatures() {
        Network net =
                Network.of(
                        cut -> sequence(column(cut, 4), mixture().build()),
                        HalfSquareLoss::new,
                        Network.regression(7, 4, 4));
        net.assertRefused(KINDS[0], "needs tokens with all features", "optGatherOutput(true)");
    }

    /** It says so itself: a SequenceGather behind it would blame the tokens. */
    @Test(timeOut = 60_000)
    public void tokensOfASequenceParallelRegion() {
        Network net =
                Network.of(
                        cut ->
                                sequence(
                                        new SequenceScatter(),
                                        mixture().build(),
                                        new SequenceGather()),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(manager.ones(new Shape(3, 4, 6))),
                                    new NDList(manager.ones(new Shape(3, 4, 6)))
                                });
        net.assertRefused(KINDS[0], "MixtureOfExperts of 3 experts", "put a SequenceGather before");
        net.assertRefused(KINDS[3], "MixtureOfExperts of 3 experts", "put a SequenceGather before");
    }

    @Test(timeOut = 60_000)
    public void aLossWithoutARouter() {
        RouterLoss loss = RouterLoss.builder().setLoss(Loss.l2Loss()).setNetwork(linear(3)).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList ones = new NDList(manager.ones(new Shape(2, 3)));
            Refusals.throwsArgument(() -> loss.evaluate(ones, ones), "found none in Linear");
        }
    }

    /** The loss of another network would leave out the losses of the routers without a word. */
    @Test(timeOut = 60_000)
    public void aLossOfAnotherNetwork() {
        Block other = mixture().build();
        Network net =
                Network.of(
                        cut -> sequence(linear(4), mixture().build(), linear(3)),
                        () ->
                                RouterLoss.builder()
                                        .setLoss(new HalfSquareLoss())
                                        .setNetwork(other)
                                        .build(),
                        Network.regression(7, 4, 3));
        net.assertRefused(PLAIN, false, "No MixtureOfExperts", "model.getBlock()");
        for (TrainerKind kind : KINDS) {
            net.assertRefused(kind, false, "No MixtureOfExperts", "model.getBlock()");
        }
    }
}
