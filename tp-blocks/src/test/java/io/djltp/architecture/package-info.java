/** Contains the tests of how packages and classes are arranged. */
package io.djltp.architecture;
