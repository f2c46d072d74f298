/** Contains the ranks of a process: their threads, contexts and groups. */
package io.djltp.internal.rank;
