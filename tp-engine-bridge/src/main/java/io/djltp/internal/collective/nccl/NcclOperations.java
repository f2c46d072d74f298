package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.Errors;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;

import java.util.Arrays;

/**
 * The collective operations as calls of NCCL.
 *
 * <p>NCCL gathers and scatters equal shares only. Unequal ones are a group of broadcasts, one from
 * each rank, or of reductions, one to each rank, which NCCL carries out as one operation.
 */
final class NcclOperations {

    private final ncclComm comm;
    private final int rank;
    private final Address source = new Address();
    private final Address target = new Address();

    NcclOperations(ncclComm comm, int rank) {
        this.comm = comm;
        this.rank = rank;
    }

    /**
     * Returns whether an operation has nothing to do, which all ranks, or both of a pair, agree on.
     */
    static boolean isEmpty(CollectiveCall call) {
        return call.hasTensors() && call.getInput().size() == 0 && call.getOutput().size() == 0;
    }

    /** Queues an all-reduce of one element, which is complete when all ranks have come. */
    int barrier(Pointer element, CUstream_st stream) {
        return nccl.ncclAllReduce(element, element, 1, nccl.ncclInt32, nccl.ncclSum, comm, stream);
    }

    /**
     * Queues an operation.
     *
     * @return the first error, or what NCCL has returned
     */
    int queue(CollectiveCall call, CUstream_st stream) {
        int type = type(call.getDataType());

        Pointer in = source.at(call.getInput(), 0);
        Pointer out = target.at(call.getOutput(), 0);
        long size = call.getInput().size();
        return switch (call.getCollective()) {
            case ALL_REDUCE -> nccl.ncclAllReduce(in, out, size, type, op(call), comm, stream);
            case BROADCAST -> nccl.ncclBroadcast(in, out, size, type, call.getRoot(), comm, stream);
            case ALL_GATHER ->
                    isEqual(call.getShares())
                            ? nccl.ncclAllGather(
                                    in, out, call.getShares()[rank], type, comm, stream)
                            : gather(call, type, stream);
            case REDUCE_SCATTER ->
                    isEqual(call.getShares())
                            ? nccl.ncclReduceScatter(
                                    in, out, call.getShares()[rank], type, op(call), comm, stream)
                            : scatter(call, type, stream);
            case ALL_TO_ALL -> allToAll(call, type, stream);
            default -> throw Errors.argument("Not an operation on tensors: %s", call);
        };
    }

    private int gather(CollectiveCall call, int type, CUstream_st stream) {
        long[] shares = call.getShares();
        return inGroup(
                shares,
                (root, start) -> {
                    target.at(call.getOutput(), start);
                    // other ranks' source is not looked at, but must not be null
                    Pointer from = root == rank ? source : target;
                    return nccl.ncclBroadcast(from, target, shares[root], type, root, comm, stream);
                });
    }

    private int scatter(CollectiveCall call, int type, CUstream_st stream) {
        long[] shares = call.getShares();
        return inGroup(
                shares,
                (root, start) -> {
                    source.at(call.getInput(), start);
                    Pointer to = root == rank ? target : source;
                    return nccl.ncclReduce(
                            source, to, shares[root], type, op(call), root, comm, stream);
                });
    }

    private int allToAll(CollectiveCall call, int type, CUstream_st stream) {
        int result = nccl.ncclGroupStart();
        long sent = 0;
        long received = 0;
        for (int peer = 0; peer < call.getShares().length && Cuda.isGood(result); peer++) {
            long out = call.getShares()[peer];
            long in = call.getReceivedShares()[peer];
            if (out > 0) {
                Pointer from = source.at(call.getInput(), sent);
                result = nccl.ncclSend(from, out, type, peer, comm, stream);
            }
            if (in > 0 && Cuda.isGood(result)) {
                Pointer to = target.at(call.getOutput(), received);
                result = nccl.ncclRecv(to, in, type, peer, comm, stream);
            }
            sent += out;
            received += in;
        }
        return endGroup(result);
    }

    /** One of the operations that make up one with unequal shares. */
    private interface Part {

        int queue(int root, long start);
    }

    private static int inGroup(long[] shares, Part part) {
        int result = nccl.ncclGroupStart();
        long start = 0;
        for (int root = 0; root < shares.length && Cuda.isGood(result); root++) {
            if (shares[root] > 0) {
                result = part.queue(root, start);
            }
            start += shares[root];
        }
        return endGroup(result);
    }

    /** Ends the group in any case: NCCL keeps it for the thread. */
    private static int endGroup(int result) {
        int end = nccl.ncclGroupEnd();
        return Cuda.isGood(result) ? end : result;
    }

    private static boolean isEqual(long... shares) {
        return Arrays.stream(shares).allMatch(share -> share == shares[0]);
    }

    private static int op(CollectiveCall call) {
        return switch (call.getOp()) {
            case SUM -> nccl.ncclSum;
            case MAX -> nccl.ncclMax;
            case MIN -> nccl.ncclMin;
        };
    }

    private static int type(DataType type) {
        return switch (type) {
            case FLOAT32 -> nccl.ncclFloat32;
            case FLOAT64 -> nccl.ncclFloat64;
            case FLOAT16 -> nccl.ncclFloat16;
            case BFLOAT16 -> nccl.ncclBfloat16;
            case INT32 -> nccl.ncclInt32;
            case INT64 -> nccl.ncclInt64;
            default -> throw Errors.argument("NCCL has no type %s", type);
        };
    }

    /** A place in a tensor, as an argument: one object for all calls. */
    private static final class Address extends Pointer {

        Address at(TensorView tensor, long element) {
            address = tensor.address() + element * tensor.getDataType().getNumOfBytes();
            return this;
        }
    }
}
