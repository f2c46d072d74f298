package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import static org.testng.Assert.assertThrows;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * The ranks of a process share the arrays of a batch: whoever changes one in place changes it for
 * all of them, at any time. That is refused, with what to do.
 */
public class InPlaceChangeTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 6;

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, TENSOR_3, DATA_2, MIXED_3, MESH_2X2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void inputs(TrainerKind kind) {
        of(x -> x.muli(0.5f)).assertRefused(kind, "input 0", "in place", "x.mul(2)", "duplicate()");
        of(x -> x.subi(x.mean(new int[] {1}, true))).assertRefused(kind, "input 0", "in place");
        of(x -> {
                    x.set(new NDIndex(":, 0"), column -> column.addi(3)); // of a view
                    return x;
                })
                .assertRefused(kind, "input 0", "in place");
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void labels(TrainerKind kind) {
        Supplier<Loss> mean =
                () ->
                        new L2Loss() {
                            @Override
                            public NDArray evaluate(NDList labels, NDList predictions) {
                                labels.head().muli(0.5f);
                                return super.evaluate(labels, predictions);
                            }
                        };
        network(x -> x, mean).assertRefused(kind, "label 0", "in place", "duplicate()");
    }

    /** There is nobody to share with. */
    @Test(timeOut = 60_000)
    public void oneRank() {
        for (ParallelMode mode : ParallelMode.values()) {
            of(x -> x.muli(0.5f)).assertEqual(new TrainerKind(mode, 1));
        }
    }

    /** A copy, and what was computed, are the rank's own. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ownArrays(TrainerKind kind) {
        of(x -> x.duplicate().muli(0.5f)).assertEqual(kind);
        of(x -> x.mul(0.5f).subi(0.1f)).assertEqual(kind);
        of(x -> {
                    NDArray doubled = x.add(x);
                    x.close();
                    return doubled;
                })
                .assertEqual(kind);
    }

    /** Predictions have no loss, and the ranks go on afterwards. */
    @Test(timeOut = 60_000)
    public void predictions() {
        ParallelConfig config = TENSOR_2.config();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(
                    sequence(
                            map(x -> x.getShape().get(0) == 2 ? x.muli(0.5f) : x),
                            first(true, 4),
                            row(true, 3)));
            try (ParallelInference ranks = new ParallelInference(model, config)) {
                ranks.initialize(new Shape(3, FEATURES));
                ranks.forward(new NDList(manager.ones(new Shape(3, FEATURES))), manager);
                NDList changed = new NDList(manager.ones(new Shape(2, FEATURES)));
                assertThrows(IllegalArgumentException.class, () -> ranks.forward(changed, manager));
                ranks.forward(new NDList(manager.ones(new Shape(3, FEATURES))), manager);
            }
        }
    }

    private static Network of(UnaryOperator<NDArray> operation) {
        return network(operation, HalfSquareLoss::new);
    }

    private static Network network(UnaryOperator<NDArray> operation, Supplier<Loss> loss) {
        return Network.of(
                cut -> sequence(map(operation), linear(6), first(cut, 4), row(cut, 3)),
                loss,
                Network.regression(ROWS, FEATURES, 3));
    }
}
