/** Contains the tests of the connections between the ranks. */
package io.djltp.internal.sockets;
