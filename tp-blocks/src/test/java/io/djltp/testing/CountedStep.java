package io.djltp.testing;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.TrafficTable;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.internal.rank.CommunicationCounter;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** The second step of a training, with what each rank has communicated and what it holds. */
public final class CountedStep {

    private final List<TrafficTable> tables = new ArrayList<>();
    private final List<RankCost> costs = new ArrayList<>();
    private final List<Map<Parameter, Shape>> shapes = new ArrayList<>();

    private CountedStep() {}

    /**
     * Makes two steps and counts the second.
     *
     * @param network the network
     * @param loss the loss, or {@code null}: then the step is an evaluation
     * @param optimizer the optimizer
     * @param mesh the ranks
     * @param sharded whether they share out the state of the optimizer
     * @param batch makes the batch: data and, as the last array, labels
     * @return what was counted
     */
    public static CountedStep run(
            Block network,
            Loss loss,
            Optimizer optimizer,
            DeviceMesh mesh,
            boolean sharded,
            Function<NDManager, NDList> batch) {
        ParallelConfig.Builder ranks = ParallelConfig.builder().setMesh(mesh).optDriftCheck(0);
        return run(network, loss, optimizer, ranks.optShardOptimizer(sharded).build(), batch);
    }

    /**
     * Makes two steps and counts the second.
     *
     * @param network the network
     * @param loss the loss, or {@code null}: then the step is an evaluation
     * @param optimizer the optimizer
     * @param ranks the ranks, without drift checks
     * @param batch makes the batch: data and, as the last array, labels
     * @return what was counted, of the ranks of this process
     */
    public static CountedStep run(
            Block network,
            Loss loss,
            Optimizer optimizer,
            ParallelConfig ranks,
            Function<NDManager, NDList> batch) {
        CountedStep counted = new CountedStep();
        try (Model model = Blocks.model(network)) {
            Loss any = loss == null ? Loss.l2Loss() : loss;
            DefaultTrainingConfig config = new DefaultTrainingConfig(any).optOptimizer(optimizer);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                NDManager manager = trainer.getManager().newSubManager();
                NDList all = batch.apply(manager);
                NDList data = all.subNDList(0, all.size() - 1);
                NDList labels = all.subNDList(all.size() - 1);
                trainer.initialize(data.getShapes());
                step(trainer, data, loss == null ? null : labels, null);
                try (CommunicationCounter counter = new CommunicationCounter(trainer.getRanks())) {
                    long[] gradients = new long[trainer.getRanks().size()];
                    step(trainer, data, loss == null ? null : labels, gradients);
                    for (int rank = 0; rank < gradients.length; rank++) {
                        counted.tables.add(counter.getTable(rank));
                        counted.costs.add(cost(trainer, rank, gradients[rank], manager));
                        counted.shapes.add(shapes(trainer, rank));
                    }
                }
            }
        }
        return counted;
    }

    private static void step(
            ParallelTrainer trainer, NDList data, NDList labels, long[] gradients) {
        if (labels == null) {
            trainer.evaluate(data);
            return;
        }
        TrainingRun.backward(trainer, data, labels);
        for (int rank = 0; gradients != null && rank < gradients.length; rank++) {
            for (Parameter parameter : parameters(trainer)) {
                NDArray value = trainer.getParameterStore(rank).getValue(parameter, null, true);
                try (NDArray gradient = Autograd.gradient(value)) {
                    gradients[rank] += gradient == null ? 0 : bytes(gradient);
                }
            }
        }
        trainer.step();
    }

    private static List<Parameter> parameters(ParallelTrainer trainer) {
        return trainer.getModel().getBlock().getParameters().values().stream().distinct().toList();
    }

    private static Map<Parameter, Shape> shapes(ParallelTrainer trainer, int rank) {
        Map<Parameter, Shape> shapes = new IdentityHashMap<>();
        for (Parameter parameter : parameters(trainer)) {
            NDArray value = trainer.getParameterStore(rank).getValue(parameter, null, true);
            shapes.put(parameter, value.getShape());
        }
        return shapes;
    }

    private static RankCost cost(
            ParallelTrainer trainer, int rank, long gradients, NDManager manager) {
        long weights = 0;
        for (Parameter parameter : parameters(trainer)) {
            weights += bytes(trainer.getParameterStore(rank).getValue(parameter, null, true));
        }
        long state = 0;
        for (String name : trainer.getOptimizerState(rank).getNames()) {
            for (NDArray kept : trainer.getOptimizerState(rank).get(name, manager).values()) {
                state += bytes(kept);
            }
        }
        return new RankCost(weights, gradients, state);
    }

    private static long bytes(NDArray array) {
        return array.size() * array.getDataType().getNumOfBytes();
    }

    /**
     * Returns what a rank has communicated.
     *
     * @param rank the rank
     * @return its table
     */
    public TrafficTable table(int rank) {
        return tables.get(rank);
    }

    /**
     * Returns what a rank holds.
     *
     * @param rank the rank
     * @return the bytes
     */
    public RankCost cost(int rank) {
        return costs.get(rank);
    }

    /**
     * Returns what a rank holds of a parameter.
     *
     * @param rank the rank
     * @param parameter the parameter
     * @return the shape of its shard or replica
     */
    public Shape shape(int rank, Parameter parameter) {
        return shapes.get(rank).get(parameter);
    }
}
