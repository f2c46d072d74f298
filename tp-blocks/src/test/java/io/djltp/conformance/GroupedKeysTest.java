package io.djltp.conformance;

import ai.djl.ndarray.NDList;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * Conformance case 5: 32 query heads share 8 key/value heads on 4, 8 and 16 ranks. On 16 two ranks
 * have each key head, and the sum of their gradients is the gradient of the dense layer.
 */
public class GroupedKeysTest {

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{4}, {8}, {16}};
    }

    @Test(dataProvider = "sizes", timeOut = 120_000)
    public void everyGradientIsThatOfTheDenseLayer(int ranks) {
        new BlockTraining(
                        () ->
                                ParallelMultiHeadAttention.builder()
                                        .setEmbeddingSize(32)
                                        .setHeads(32)
                                        .optKeyValueHeads(8)
                                        .optHeadDim(2)
                                        .optFusedQkv(ranks == 8)
                                        .optBias(false) // of which that of keys has no gradient
                                        .build(),
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(TrainingRun.random(manager, step, 2, 3, 32)),
                                    new NDList(TrainingRun.random(manager, 40 + step, 2, 3, 32))
                                },
                        null)
                .assertEqual(new TrainerKind(ParallelMode.TENSOR, ranks));
    }
}
