package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.checkpoint.store.CheckpointWriter;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The state of a trainer after a step: views of what changes in steps alone, copies of what forward
 * passes change.
 */
final class TakenState implements AutoCloseable {

    /** Of weights, which change in steps, trained or frozen; others are buffers of a block. */
    private static final Set<Parameter.Type> WEIGHTS =
            Set.of(
                    Parameter.Type.WEIGHT,
                    Parameter.Type.BIAS,
                    Parameter.Type.GAMMA,
                    Parameter.Type.BETA);

    private final NDManager manager = NDManager.newBaseManager(); // not the trainer's: it outlives
    private final StateLayout layout;
    private final long step;
    private final String mesh;
    private final List<Integer> own;
    private final List<StateTensor> tensors = new ArrayList<>();
    private final List<Read> reads = new ArrayList<>();
    private final StateReading reading = new StateReading();

    /** What is read of a rank. */
    private record Read(int rank, String tensor, NDArray array, ReadArray read) {}

    TakenState(StateLayout layout, long step, String mesh) {
        this.layout = layout;
        this.step = step;
        this.mesh = mesh;
        own = layout.ownParts();
    }

    /** Returns the manager of views and copies. */
    NDManager getManager() {
        return manager;
    }

    /** Returns the step after which the state was taken. */
    long getStep() {
        return step;
    }

    /** Returns how far it was read. */
    StateReading reading() {
        return reading;
    }

    void add(List<StateTensor> more) {
        tensors.addAll(more);
    }

    /**
     * Puts the tensors in the order in which they are read: what is of no parameter first, since
     * the whole of a step waits for it, then each parameter with what the optimizer keeps of it. To
     * be called when all were added.
     *
     * @param first the names of the parameters that a step changes first
     */
    void order(Set<String> first) {
        Map<String, List<StateTensor>> groups = new LinkedHashMap<>();
        groups.put("", new ArrayList<>());
        first.forEach(name -> groups.put(name, new ArrayList<>()));
        for (StateTensor each : tensors) {
            String name = each.parameter() == null ? "" : each.parameter();
            groups.computeIfAbsent(name, key -> new ArrayList<>()).add(each);
        }
        tensors.clear();
        groups.values().forEach(tensors::addAll);
        for (int rank = 0; rank < layout.ranks(); rank++) {
            if (layout.isWriter(rank)) {
                addRead(rank);
            }
        }
    }

    /** Notes what will be read of a rank. */
    private void addRead(int rank) {
        for (StateTensor each : tensors) {
            if (each.tensor().isIn(layout.partOf(rank))) {
                NDArray array = each.arrays().get(rank);
                Shape shape = array.getShape();
                long rows = shape.dimension() == 0 ? 1 : shape.get(0);
                long bytes = shape.size() * array.getDataType().getNumOfBytes();
                ReadArray read = new ReadArray(each.parameter(), rows, bytes);
                reading.add(rank, read);
                reads.add(new Read(rank, each.tensor().name(), array, read));
            }
        }
    }

    /**
     * Adds a parameter.
     *
     * @param parameter the parameter
     * @param values what the ranks of this process have of it
     */
    void add(Parameter parameter, List<NDArray> values) {
        boolean changes = !parameter.requiresGradient() && !WEIGHTS.contains(parameter.getType());
        List<NDArray> arrays = new ArrayList<>();
        for (NDArray value : values) {
            NDArray view = Autograd.detach(value, manager);
            arrays.add(changes || !TensorView.of(view).isContiguous() ? view.duplicate() : view);
        }
        CutTensor tensor = layout.ofWeight(parameter);
        tensors.add(new StateTensor(tensor, tensor.name(), arrays));
    }

    /**
     * Begins to write.
     *
     * @param folder where it goes
     * @return the writer, which knows the tensors of this process
     */
    CheckpointWriter begin(CheckpointFolder folder) throws IOException {
        CheckpointWriter writer = folder.begin(step, mesh, layout.parts(), own);
        try {
            for (StateTensor each : tensors) {
                writer.declare(each.tensor());
            }
            for (Read each : reads) {
                writer.put(
                        each.tensor(),
                        layout.partOf(each.rank()),
                        each.array(),
                        bytes -> reading.setRead(each.read(), bytes));
            }
            return writer;
        } catch (RuntimeException | Error e) {
            writer.close();
            throw e;
        }
    }

    /** Lets go of the arrays. */
    void release() {
        manager.close();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        release();
    }
}
