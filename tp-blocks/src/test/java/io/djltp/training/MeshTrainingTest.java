package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.Test;

public class MeshTrainingTest {
    @Test(timeOut = 60_000)
    public void mlp() {
        Network.of(
                        cut ->
                                sequence(
                                        linear(8),
                                        tanh(),
                                        column(cut, 9),
                                        tanh(),
                                        row(cut, 6),
                                        head(7)),
                        VocabParallelCrossEntropyLoss::new,
                        Network.classification(7, 5, 7))
                .assertEqual(TrainerKind.mesh(2, 2), TrainerKind.mesh(2, 3));
    }

    @Test(timeOut = 60_000)
    public void regression() {
        Network.of(
                        cut -> sequence(linear(8), tanh(), column(cut, 9), tanh(), row(cut, 3)),
                        HalfSquareLoss::new,
                        Network.regression(7, 5, 3))
                .assertEqual(TrainerKind.mesh(2, 2), TrainerKind.mesh(2, 3));
    }
}
