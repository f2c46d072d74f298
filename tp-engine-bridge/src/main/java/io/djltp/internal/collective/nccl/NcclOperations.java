package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;

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
        return call.getInput() != null
                && call.getInput().size() == 0
                && call.getOutput().size() == 0;
    }

    /**
     * Queues an operation.
     *
     * @return the first error, or what NCCL has returned
     */
    int queue(CollectiveCall call, CUstream_st stream) {
        switch (call.getCollective()) {
            case ALL_REDUCE:
                return allReduce(call, stream);
            case ALL_GATHER:
                return isEqual(call.getShares())
                        ? allGather(call, stream)
                        : inGroup(call.getShares(), call, stream, this::gatherFrom);
            case REDUCE_SCATTER:
                return isEqual(call.getShares())
                        ? reduceScatter(call, stream)
                        : inGroup(call.getShares(), call, stream, this::reduceTo);
            case BROADCAST:
                return broadcast(call, stream);
            case ALL_TO_ALL:
                return allToAll(call, stream);
            default:
                throw new IllegalArgumentException("Not an operation on tensors: " + call);
        }
    }

    /** Queues an all-reduce of one element, which is complete when all ranks have come. */
    int barrier(Pointer element, CUstream_st stream) {
        return nccl.ncclAllReduce(element, element, 1, nccl.ncclInt32, nccl.ncclSum, comm, stream);
    }

    private int allReduce(CollectiveCall call, CUstream_st stream) {
        return nccl.ncclAllReduce(
                source.at(call.getInput(), 0),
                target.at(call.getOutput(), 0),
                call.getInput().size(),
                type(call),
                op(call.getOp()),
                comm,
                stream);
    }

    private int broadcast(CollectiveCall call, CUstream_st stream) {
        return nccl.ncclBroadcast(
                source.at(call.getInput(), 0),
                target.at(call.getOutput(), 0),
                call.getInput().size(),
                type(call),
                call.getRoot(),
                comm,
                stream);
    }

    private int allGather(CollectiveCall call, CUstream_st stream) {
        return nccl.ncclAllGather(
                source.at(call.getInput(), 0),
                target.at(call.getOutput(), 0),
                call.getShares()[rank],
                type(call),
                comm,
                stream);
    }

    private int gatherFrom(int root, long start, CollectiveCall call, CUstream_st stream) {
        target.at(call.getOutput(), start);
        // other ranks' source is not looked at, but must not be null
        Pointer from = root == rank ? source.at(call.getInput(), 0) : target;
        return nccl.ncclBroadcast(
                from, target, call.getShares()[root], type(call), root, comm, stream);
    }

    private int reduceScatter(CollectiveCall call, CUstream_st stream) {
        return nccl.ncclReduceScatter(
                source.at(call.getInput(), 0),
                target.at(call.getOutput(), 0),
                call.getShares()[rank],
                type(call),
                op(call.getOp()),
                comm,
                stream);
    }

    private int reduceTo(int root, long start, CollectiveCall call, CUstream_st stream) {
        source.at(call.getInput(), start);
        Pointer to = root == rank ? target.at(call.getOutput(), 0) : source;
        return nccl.ncclReduce(
                source,
                to,
                call.getShares()[root],
                type(call),
                op(call.getOp()),
                root,
                comm,
                stream);
    }

    private int allToAll(CollectiveCall call, CUstream_st stream) {
        int result = nccl.ncclGroupStart();
        long sent = 0;
        long received = 0;
        for (int peer = 0; peer < call.getShares().length && isGood(result); peer++) {
            long out = call.getShares()[peer];
            long in = call.getReceivedShares()[peer];
            if (out > 0) {
                result =
                        nccl.ncclSend(
                                source.at(call.getInput(), sent),
                                out,
                                type(call),
                                peer,
                                comm,
                                stream);
            }
            if (in > 0 && isGood(result)) {
                result =
                        nccl.ncclRecv(
                                target.at(call.getOutput(), received),
                                in,
                                type(call),
                                peer,
                                comm,
                                stream);
            }
            sent += out;
            received += in;
        }
        return endGroup(result);
    }

    private int inGroup(long[] shares, CollectiveCall call, CUstream_st stream, Part part) {
        int result = nccl.ncclGroupStart();
        long start = 0;
        for (int root = 0; root < shares.length && isGood(result); root++) {
            if (shares[root] > 0) {
                result = part.queue(root, start, call, stream);
            }
            start += shares[root];
        }
        return endGroup(result);
    }

    /** Ends the group in any case: NCCL keeps it for the thread. */
    private static int endGroup(int result) {
        int end = nccl.ncclGroupEnd();
        return isGood(result) ? end : result;
    }

    private static boolean isGood(int result) {
        return result == nccl.ncclSuccess || result == nccl.ncclInProgress;
    }

    private static boolean isEqual(long[] shares) {
        for (long share : shares) {
            if (share != shares[0]) {
                return false;
            }
        }
        return true;
    }

    private static int op(ReduceOp op) {
        switch (op) {
            case SUM:
                return nccl.ncclSum;
            case MAX:
                return nccl.ncclMax;
            case MIN:
                return nccl.ncclMin;
            default:
                throw new IllegalArgumentException("NCCL has no reduction " + op);
        }
    }

    private static int type(CollectiveCall call) {
        DataType type = call.getDataType();
        switch (type) {
            case FLOAT32:
                return nccl.ncclFloat32;
            case FLOAT64:
                return nccl.ncclFloat64;
            case FLOAT16:
                return nccl.ncclFloat16;
            case BFLOAT16:
                return nccl.ncclBfloat16;
            case INT32:
                return nccl.ncclInt32;
            case INT64:
                return nccl.ncclInt64;
            case INT8:
                return nccl.ncclInt8;
            case UINT8:
                return nccl.ncclUint8;
            default:
                throw new IllegalArgumentException("NCCL has no type " + type + " for " + call);
        }
    }

    /** One of the operations that make up one with unequal shares. */
    @FunctionalInterface
    private interface Part {

        int queue(int root, long start, CollectiveCall call, CUstream_st stream);
    }

    /** A place in a tensor, as an argument: one object for all calls. */
    private static final class Address extends Pointer {

        Address at(TensorView tensor, long element) {
            address = tensor.address() + element * tensor.getDataType().getNumOfBytes();
            return this;
        }
    }
}
