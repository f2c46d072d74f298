package io.djltp.torch;

import io.djltp.torch.AutogradGraph.Node;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.AutogradCompilerCall;
import org.bytedeco.pytorch.CompiledNodeArgs;
import org.bytedeco.pytorch.NodeCall;

import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * Over which axes an operation was called: the axis of a softmax, the axes of a transpose. Neither
 * the name of its node nor the shape of its result says that.
 *
 * <p>Libtorch writes the arguments that a backward function keeps to the key under which its
 * compiled autograd knows the function: in the alphabetical order of their names, integers as 8
 * bytes, before a list its length, before what may be missing whether it is there. Lengths of axes
 * are not in it. (PyTorch 2.7: {@code compiled_args} in torch/csrc/autograd/generated.)
 */
@SuppressWarnings("try") // a scope is used by being open
public final class OperationAxes {

    /** One axis, {@code dim}. */
    private static final Set<String> ONE =
            Set.of(
                    "SoftmaxBackward0",
                    "LogSoftmaxBackward0",
                    "CumsumBackward0",
                    "CumprodBackward0",
                    "LogcumsumexpBackward0",
                    "SortBackward0",
                    "TopkBackward0",
                    "GatherBackward0",
                    "ScatterBackward0",
                    "IndexSelectBackward0",
                    "MaxBackward0",
                    "MinBackward0",
                    "MedianBackward1",
                    "ProdBackward1",
                    "CatBackward0",
                    "StackBackward0",
                    "SplitBackward0",
                    "SplitWithSizesBackward0",
                    "SelectBackward0",
                    "SliceBackward0",
                    "UnsqueezeBackward0",
                    "SqueezeBackward1");

    /** Two, {@code dim0} and {@code dim1}. */
    private static final Set<String> TWO = Set.of("TransposeBackward0", "TransposeBackward1");

    /** A list. */
    private static final Set<String> LIST =
            Set.of(
                    "FlipBackward0",
                    "RollBackward0",
                    "PermuteBackward0",
                    "NormBackward1",
                    "AmaxBackward0",
                    "AminBackward0",
                    "LogsumexpBackward0");

    /** A list that may be missing, where all axes are meant. */
    private static final Set<String> OPTIONAL = Set.of("SumBackward1", "MeanBackward1");

    private static final Set<String> ADD_AN_AXIS = Set.of("StackBackward0", "UnsqueezeBackward0");
    private static final String LAYER_NORM = "NativeLayerNormBackward0";
    private static final int ARRAY = 12; // the bytes that say of what kind a saved array is

    private OperationAxes() {}

    /**
     * Returns whether an operation is one of those whose axes are known.
     *
     * @param name the name of its node, such as {@code SoftmaxBackward0}
     * @return whether it is
     */
    public static boolean isKnown(String name) {
        return ONE.contains(name)
                || TWO.contains(name)
                || LIST.contains(name)
                || OPTIONAL.contains(name)
                || LAYER_NORM.equals(name);
    }

    /**
     * Returns the axes of an operation.
     *
     * @param node the operation, whose graph is there still
     * @param dimensions the number of axes of what it was computed of
     * @return the axes, counted from 0; {@code null} if they are not known
     */
    public static int[] of(Node node, int dimensions) {
        String name = node.name();
        if (!isKnown(name)) {
            return null;
        }
        byte[] key;
        try (TorchScope scope = TorchScope.open()) {
            key = keyOf(new org.bytedeco.pytorch.Node(new NodePointer(node.address())));
        }
        ByteBuffer bytes = ByteBuffer.wrap(key).order(ByteOrder.nativeOrder());
        int all = ADD_AN_AXIS.contains(name) ? node.shape().length : dimensions;
        try {
            if (LAYER_NORM.equals(name)) {
                return lastAxes(bytes, all);
            }
            int count = ONE.contains(name) ? 1 : 2;
            if (OPTIONAL.contains(name) && bytes.get() == 0) {
                return IntStream.range(0, all).toArray();
            }
            if (LIST.contains(name) || OPTIONAL.contains(name)) {
                count = bytes.get();
            }
            int[] axes = new int[count];
            for (int i = 0; i < count; i++) {
                long axis = bytes.getLong();
                axes[i] = (int) (axis < 0 ? axis + all : axis);
                if (axes[i] < 0 || axes[i] >= all) {
                    return null;
                }
            }
            return axes;
        } catch (BufferUnderflowException e) {
            return null; // arguments that another libtorch keeps in another way
        }
    }

    /** Of the bias and the input, which come first, there is no more than their kind. */
    private static int[] lastAxes(ByteBuffer bytes, int all) {
        for (int i = 0; i < 2; i++) {
            int skipped = bytes.get(bytes.position()) == 0 ? 1 : ARRAY;
            bytes.get(new byte[skipped]);
        }
        int count = bytes.get();
        return count < 1 || count > all ? null : IntStream.range(all - count, all).toArray();
    }

    /** Returns what a backward function keeps, but for arrays and lengths. */
    static byte[] keyOf(org.bytedeco.pytorch.Node node) {
        try (AutogradCompilerCall compiler = new AutogradCompilerCall((byte) 0);
                NodeCall call = new NodeCall(0, node);
                CompiledNodeArgs arguments = new CompiledNodeArgs(compiler, call)) {
            node.compiled_args(arguments);
            byte[] key = new byte[Short.toUnsignedInt(arguments.key().key_size())];
            try (BytePointer content = arguments.key().key()) {
                content.get(key);
            }
            return key;
        } catch (RuntimeException e) {
            return new byte[0]; // of an array that was changed in place since
        }
    }

    /** A pointer to a node that its graph owns. */
    private static final class NodePointer extends Pointer {

        NodePointer(long address) {
            this.address = address;
        }
    }
}
