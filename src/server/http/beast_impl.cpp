// Beast's compiled part, once (BOOST_BEAST_SEPARATE_COMPILATION).
#include <boost/beast/src.hpp>
